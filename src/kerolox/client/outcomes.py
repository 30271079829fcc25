"""How a handler says that it did not take a message: by raising one of these. Any other exception counts as
:class:`Retry`. Returning means that it was taken."""

from __future__ import annotations

from collections.abc import Iterable

from kerolox.client.messages import Received


class Retry(Exception):
    """Bring it again later.

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


class Suspend(Exception):
    """In ordered consumption: try this very message again, after so many seconds."""

    def __init__(self, seconds: float, reason: str = "") -> None:
        super().__init__(reason)
        self.seconds = min(30.0, max(0.01, seconds))
