"""One tree of errors. Each says what happened with its values, and what to do next.

An error that is a failed connection or an exceeded deadline is also Python's ``ConnectionError`` or
``TimeoutError``, so programs that handle those handle it.

``code`` is the response code the error becomes on the wire, ``retriable`` tells whether the same
call may succeed later. Two kinds matter to a connection: an error that is answered and after which
the connection goes on (the default), and one after which it is closed (:class:`ProtocolError`,
because what follows on the stream cannot be trusted).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

E = TypeVar("E", bound=Exception)

# The response codes errors carry; the whole table with its names is protocol/codes.py, which this
# module cannot import: everything imports errors, errors imports nothing.
_SYSTEM_ERROR = 1
_SYSTEM_BUSY = 2
_SERVICE_NOT_AVAILABLE = 14
_INVALID_PARAMETER = 29


def sentences(what: str, *more: str) -> str:
    """What happened and what to do, each ended by one mark: texts may end with one already."""
    texts = [what, *(text[:1].upper() + text[1:] for text in more)]
    return " ".join(text if text.endswith((".", "?", "!")) else f"{text}." for text in texts)


def nearest(name: str, known: Iterable[str]) -> str:
    """A question to end an error with, when ``name`` looks like a slip for one that is known; or nothing."""
    import difflib  # not at the top: only a slip needs it

    by_folded = {text.lower(): text for text in known}
    found = difflib.get_close_matches(name.lower(), by_folded, n=2, cutoff=0.7)
    return f" Did you mean {' or '.join(by_folded[text] for text in found)}?" if found else ""


class KeroloxError(Exception):
    """Anything kerolox raises on purpose."""

    code: int = _SYSTEM_ERROR
    retriable: bool = False
    next_step: str = ""  # what to do about it; part of the text as well

    def __reduce__(self) -> tuple[Any, ...]:
        # Constructors take values, not the text: an error crosses processes by its attributes.
        return restored, (type(self), self.args, self.__dict__)


def restored(kind: type[E], args: tuple[Any, ...], attributes: dict[str, Any]) -> E:
    """Make an unpickled exception without calling its constructor."""
    error = kind.__new__(kind, *args)
    error.args = args  # kinds of OSError set them in their constructor only
    error.__dict__.update(attributes)
    return error


class ProtocolError(KeroloxError):
    """Bytes that are not what they claim to be: what was read, where, and what was expected.

    After it the stream has lost its place, so the connection is closed.
    """

    def __init__(self, what: str, *, at: int | None = None) -> None:
        self.what = what
        self.at = at
        super().__init__(what if at is None else f"{what} (at byte {at})")


class InvalidRequest(KeroloxError):
    """A well-formed request with a missing or wrong field. Answered; the connection goes on."""

    code = _INVALID_PARAMETER


class Refused(KeroloxError):
    """A request that is answered with this code and remark."""

    def __init__(self, code: int, remark: str) -> None:
        self.code = code
        super().__init__(remark)


class OptionError(KeroloxError):
    """A setting that is unknown, or has a value it cannot take."""

    def __init__(self, key: str, value: object, expected: str, source: str = "") -> None:
        self.key = key
        self.value = value
        self.expected = expected
        self.source = source
        where = f" (from {source})" if source else ""
        super().__init__(f"option {key} = {value!r}{where}: expected {expected}")


class NotThere(OptionError):
    """A setting that asks for something this program does not have: refused, for it would do nothing."""

    def __init__(self, key: str, value: object, why: str, source: str = "") -> None:
        super().__init__(key, value, "", source)
        where = f" (from {source})" if source else ""
        self.args = (f"option {key} = {value!r}{where} is refused, for it would have no effect: {why}.",)


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
        super().__init__(f"cannot connect to {address}: {reason}. Is it running, and reachable from here?")


class ConnectionLost(KeroloxError, ConnectionError):
    """The connection closed while a request was waiting for its answer. It may have been carried out."""

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
            "It may have been carried out; a longer timeout or a look at the peer's load may help."
        )


class Overloaded(KeroloxError):
    """A bound on waiting work was reached; nothing was done."""

    code = _SYSTEM_BUSY
    retriable = True


class Closed(KeroloxError):
    """Used after close, or while shutting down."""

    code = _SERVICE_NOT_AVAILABLE
