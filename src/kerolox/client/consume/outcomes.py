"""How a handler says that it did not take a message: by raising one of these. Any other exception counts as
:class:`Retry`. Returning means that it was taken."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kerolox.client.messages import Received
from kerolox.client.user_code import HandlerExit
from kerolox.errors import restored
from kerolox.protocol.properties import plain_reason


def reason_of(error: Exception) -> str:
    """What an exception of a handler gives as reason: the text of ours, the kind as well of others."""
    try:
        text = str(error)
    except Exception:  # a handler's own kind of exception: whatever it does, its message is given back
        text = ""
    if isinstance(error, Retry | Suspend | HandlerExit):
        return plain_reason(text)
    return plain_reason(f"{type(error).__name__}: {text}" if text else type(error).__name__)


class Outcome(Exception):
    """Base of the exceptions that say what becomes of a message."""

    def __reduce__(self) -> tuple[Any, ...]:
        return restored, (type(self), self.args, self.__dict__)


class Retry(Outcome):
    """Bring it again later. The ``reason`` stays with the message: ``kerolox dlq show`` tells it.

    ``level`` is a delay level (1 to 18); without one the delay grows with each attempt. A batch handler may
    name the ``messages`` it means; the others count as taken.
    """

    def __init__(
        self, reason: str = "", *, level: int = 0, messages: Iterable[Received] | None = None
    ) -> None:
        super().__init__(reason)
        self.level = level
        self.messages = None if messages is None else list(messages)


class DeadLetter(Retry):
    """Do not bring it again: it is a dead letter of the group."""

    def __init__(self, reason: str = "", *, messages: Iterable[Received] | None = None) -> None:
        super().__init__(reason, level=-1, messages=messages)


class Suspend(Outcome):
    """In ordered consumption: try this very message again, after so many seconds."""

    def __init__(self, seconds: float, reason: str = "") -> None:
        super().__init__(reason)
        self.seconds = min(30.0, max(0.01, seconds))
