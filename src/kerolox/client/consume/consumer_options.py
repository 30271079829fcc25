"""The options of consumers."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from kerolox.client.calls.readers import LEADER, check_read_from
from kerolox.client.consume.allocation import STRATEGIES, Strategy, average
from kerolox.errors import OptionError
from kerolox.protocol.reserved import TRACE_TOPIC
from kerolox.protocol.subscription import SQL92, TAG

log = logging.getLogger(__name__)


class StartAt(Enum):
    """Where a group begins in a queue in which it has no progress."""

    LAST = "CONSUME_FROM_LAST_OFFSET"
    FIRST = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


@dataclass(frozen=True)
class ConsumerOptions:
    """What push and pull consumers have in common."""

    # --- where a new group begins: "first", "last", a datetime, or a timedelta before now
    start: str | datetime | timedelta = "last"
    broadcasting: bool = False  # every member gets every message; progress is kept in a file here
    strategy: str | Strategy = (
        average  # how queues are divided: a function of kerolox.client.consume.allocation
    )

    # --- how much waits here, not done yet; a pull waits while one of these is reached
    queue_messages_max: int = 1000
    queue_bytes_max: int = 100 << 20
    topic_messages_max: int = 0  # of all queues of a topic together; 0: no limit
    topic_bytes_max: int = 0

    # --- pulling
    read_from: str = LEADER  # or "follower": from copies where there are some; without a leader always
    pull_count: int = 32  # brokers have limits of their own
    pull_bytes: int = 256 << 10
    hold_s: float = 15.0  # how long a broker may hold a pull that finds nothing
    error_pause_s: float = 1.0

    # --- how often
    balance_s: float = 20.0
    save_s: float = 5.0
    close_s: float = 10.0  # how long closing waits for handlers that are at work

    offsets_directory: str = ""  # of broadcasting; default: KEROLOX_OFFSETS_DIRECTORY or ~/.rocketmq_offsets

    def __post_init__(self) -> None:
        self.start_at()
        if isinstance(self.strategy, str) and self.strategy not in STRATEGIES:
            raise OptionError("strategy", self.strategy, f"one of {', '.join(STRATEGIES)}, or a function")
        for name in ("queue_messages_max", "queue_bytes_max", "pull_count", "pull_bytes"):
            if getattr(self, name) < 1:
                raise OptionError(name, getattr(self, name), "1 or more")
        check_read_from(self.read_from)
        for name in ("balance_s", "save_s", "hold_s"):
            if getattr(self, name) <= 0:
                raise OptionError(name, getattr(self, name), "a number of seconds over 0")

    @property
    def allocate(self) -> Strategy:
        return STRATEGIES[self.strategy] if isinstance(self.strategy, str) else self.strategy

    def start_at(self) -> StartAt:
        if isinstance(self.start, datetime | timedelta):
            return StartAt.TIMESTAMP
        try:
            return (
                StartAt[self.start.upper()]
                if self.start.lower() in ("first", "last")
                else StartAt(self.start)
            )
        except (ValueError, AttributeError):
            raise OptionError("start", self.start, '"first", "last", a datetime or a timedelta') from None

    def start_ms(self, now_ms: int) -> int:
        """The time to begin at, when that is what was asked for."""
        if isinstance(self.start, datetime):
            return int(self.start.timestamp() * 1000)
        ago = self.start if isinstance(self.start, timedelta) else timedelta(minutes=30)
        return now_ms - int(ago.total_seconds() * 1000)


@dataclass(frozen=True)
class PushOptions(ConsumerOptions):
    """How a push consumer works."""

    workers: int = 20  # handlers at work at the same time
    ordered: bool = False  # one handler per queue, in order; queues are locked at the broker
    queue_span_max: int = 2000  # not in ordered consumption: how far what is not done may reach

    # --- when a handler fails
    attempts_max: int = -1  # then it is a dead letter; -1: 16, or without end in ordered consumption
    suspend_s: float = 1.0  # ordered: how long a queue rests after a failure
    handler_s_max: float = 15 * 60.0  # not ordered: a message at work for longer is brought to somebody else

    trace: bool = False
    trace_topic: str = TRACE_TOPIC

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.workers < 1:
            raise OptionError("workers", self.workers, "1 or more")
        if not 0.01 <= self.suspend_s <= 30:
            raise OptionError("suspend_s", self.suspend_s, "0.01 to 30 seconds")
        if self.ordered and self.broadcasting:
            raise OptionError("ordered", True, "not together with broadcasting: nobody else has the queues")


@dataclass(frozen=True)
class PullOptions(ConsumerOptions):
    """How a pull consumer works."""

    auto_commit: bool = True  # what a batch brought counts as done when the next is asked for
    hold_s: float = 20.0
    messages_max: int = 10_000  # that wait here in all


def expression_of(tags: str, sql: str | None) -> tuple[str, str]:
    """What is wanted of a topic, and in which language that is said. Raises FilterError for a condition that
    brokers could not use: they would say so to nobody but their log."""
    for name, given in (("tags", tags), ("sql", sql)):
        if not isinstance(given, str | None):
            raise OptionError(name, given, f"text, not {type(given).__name__}; tags are joined by ||")
    if sql is None:
        return tags or "*", TAG
    from kerolox.protocol.filters.sql import compile_filter  # few need it

    compiled = compile_filter(sql)
    if compiled.ignored_from >= 0:
        log.warning(
            "condition_has_more sql=%r ignored=%r next='join conditions by AND or OR'",
            sql, sql[compiled.ignored_from :],
        )  # fmt: skip
    return sql, SQL92
