"""All errors of kerolox. Each message contains the values and the next step.

``code`` is the response code of the error on the wire; ``retriable`` is true if the same call may succeed
later. A connection continues after an error has been answered (the default), and is closed after a
:class:`ProtocolError`, because the rest of the stream is unusable.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

E = TypeVar("E", bound=Exception)

# Response codes of errors. The table with their names is protocol/codes.py, which cannot be imported here:
# every module imports errors, and errors imports none.
_SYSTEM_ERROR = 1
_SYSTEM_BUSY = 2
_SERVICE_NOT_AVAILABLE = 14
_INVALID_PARAMETER = 29


def sentences(what: str, *more: str) -> str:
    """Join a description and next steps to sentences, each with one full stop even if the text already ends
    with one."""
    texts = [what, *(text[:1].upper() + text[1:] for text in more)]
    return " ".join(text if text.endswith((".", "?", "!")) else f"{text}." for text in texts)


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a question for the end of an error if ``name`` resembles a known name; else ""."""
    import difflib  # not at the top: only misspellings need it

    by_folded = {text.lower(): text for text in known}
    found = difflib.get_close_matches(name.lower(), by_folded, n=2, cutoff=0.7)
    return f" Did you mean {' or '.join(by_folded[text] for text in found)}?" if found else ""


class KeroloxError(Exception):
    """Base class of all errors that kerolox raises deliberately."""

    code: int = _SYSTEM_ERROR
    label: str = ""  # of rejections in metrics; default: the name of the code
    retriable: bool = False
    next_step: str = ""  # the next step; it is part of the message too

    def __reduce__(self) -> tuple[Any, ...]:
        # Constructors take values instead of the text, so errors are pickled by their attributes.
        return restored, (type(self), self.args, self.__dict__)


def restored(kind: type[E], args: tuple[Any, ...], attributes: dict[str, Any]) -> E:
    """Make an unpickled exception without calling its constructor."""
    error = kind.__new__(kind, *args)
    error.args = args  # kinds of OSError set them in their constructor only
    error.__dict__.update(attributes)
    return error


class ProtocolError(KeroloxError):
    """Invalid bytes: the message has the value found, its position, and the expected value.

    The position in the stream is lost, so the connection is closed.
    """

    def __init__(self, what: str, *, at: int | None = None) -> None:
        self.what = what
        self.at = at
        super().__init__(what if at is None else f"{what} (at byte {at})")


class InvalidRequest(KeroloxError):
    """A well-formed request with a missing or wrong field. It is answered; the connection stays open."""

    code = _INVALID_PARAMETER


class Refused(KeroloxError):
    """A request that is rejected with this code and remark."""

    def __init__(self, code: int, remark: str, label: str = "") -> None:
        self.code = code
        self.label = label
        super().__init__(remark)


class OptionError(KeroloxError):
    """A setting that is unknown or has an invalid value."""

    def __init__(self, key: str, value: object, expected: str, source: str = "") -> None:
        self.key = key
        self.value = value
        self.expected = expected
        self.source = source
        where = f" (from {source})" if source else ""
        super().__init__(f"option {key} = {value!r}{where}: expected {expected}")


class NotThere(OptionError):
    """A setting for a feature that kerolox lacks. It is rejected, because it would have no effect."""

    def __init__(self, key: str, value: object, why: str, source: str = "") -> None:
        super().__init__(key, value, "", source)
        where = f" (from {source})" if source else ""
        self.args = (f"option {key} = {value!r}{where} is rejected because it would have no effect: {why}.",)


class RequestFailed(KeroloxError):
    """The peer answered with an error code."""

    def __init__(self, code: int, remark: str | None, *, address: str = "", request: str = "") -> None:
        from kerolox.protocol.codes import RETRIABLE_CODES, response_name

        self.response_code = code
        self.remark = remark
        self.address = address
        self.can_retry = self.retriable = code in RETRIABLE_CODES
        asked = f" to {request}" if request else ""
        by = f" by {address}" if address else ""
        super().__init__(f"answer{asked}{by}: {response_name(code)} ({code}): {remark or 'no remark given'}")


class ConnectFailed(KeroloxError, ConnectionError):
    """No connection to the address."""

    retriable = True

    def __init__(self, address: str, reason: object) -> None:
        self.address = address
        super().__init__(
            f"cannot connect to {address}: {reason}. Check that the server runs and is reachable from here."
        )


class ConnectionLost(KeroloxError, ConnectionError):
    """The connection closed before the answer arrived. The request may have been carried out."""

    retriable = True

    def __init__(self, address: str, reason: object) -> None:
        self.address = address
        super().__init__(f"connection to {address} closed before the answer came: {reason}")


class RequestTimeout(KeroloxError, TimeoutError):
    """No answer within the deadline. The request may have been carried out."""

    retriable = True

    def __init__(self, address: str, request: str, timeout_s: float) -> None:
        self.address = address
        self.timeout_s = timeout_s
        super().__init__(
            f"no answer to {request} from {address} within {timeout_s:.3g} s. "
            "It may have been carried out; check the peer's load, or use a longer timeout."
        )


class Overloaded(KeroloxError):
    """A limit on pending work was reached; the request was not carried out."""

    code = _SYSTEM_BUSY
    retriable = True


class Closed(KeroloxError):
    """Use after close, or during shutdown."""

    code = _SERVICE_NOT_AVAILABLE
