"""Tables of a leader that changed: the answer to WATCH_TABLES, between brokers of ours."""

from __future__ import annotations

from kerolox.protocol.bodies.body import Body

TABLES = ("topics", "groups", "modes", "users", "offsets")


class TableNews(Body, frozen=True, kw_only=True):
    """The changes since the one that the follower named."""

    life: str = ""  # a name for the time since the leader began to lead: serials of another one mean nothing
    offsets: dict[str, dict[int, int]] = {}  # topic@group → queue → progress that was committed
    serial: int = 0  # of the last change
    tables: tuple[str, ...] = ()  # to be copied as a whole
