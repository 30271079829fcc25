"""Exceptions by which a handler rejects a message. Any other exception counts as :class:`Retry`; returning
acknowledges the message."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kerolox.client.messages import Received
from kerolox.client.user_code import HandlerExit
from kerolox.errors import restored
from kerolox.protocol.properties import plain_reason


def reason_of(error: Exception) -> str:
    """Return the reason of a rejection: the text of these exceptions; for others, their class and text."""
    try:
        text = str(error)
    except Exception:  # the __str__ of a user's exception may raise; the message is sent back anyway
        text = ""
    if isinstance(error, Retry | Suspend | HandlerExit):
        return plain_reason(text)
    return plain_reason(f"{type(error).__name__}: {text}" if text else type(error).__name__)


class Outcome(Exception):
    """Base of the exceptions that decide the outcome of a message."""

    def __reduce__(self) -> tuple[Any, ...]:
        return restored, (type(self), self.args, self.__dict__)


class Retry(Outcome):
    """Request to deliver the message again later. ``kerolox dlq show`` prints the ``reason``.

    ``level`` is a delay level (1 to 18); without one, the delay grows with each attempt. A batch handler may
    name the rejected ``messages``; the others are acknowledged.
    """

    def __init__(
        self, reason: str = "", *, level: int = 0, messages: Iterable[Received] | None = None
    ) -> None:
        super().__init__(reason)
        self.level = level
        self.messages = None if messages is None else list(messages)


class DeadLetter(Retry):
    """Request to store the message as a dead letter of the group, without retries."""

    def __init__(self, reason: str = "", *, messages: Iterable[Received] | None = None) -> None:
        super().__init__(reason, level=-1, messages=messages)


class Suspend(Outcome):
    """Request of an ordered handler to retry the message after some seconds."""

    def __init__(self, seconds: float, reason: str = "") -> None:
        super().__init__(reason)
        self.seconds = min(30.0, max(0.01, seconds))
