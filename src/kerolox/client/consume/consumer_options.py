"""Options of consumers."""

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
    """Start position of a group in a queue without progress."""

    LAST = "CONSUME_FROM_LAST_OFFSET"
    FIRST = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


@dataclass(frozen=True)
class ConsumerOptions:
    """Common options of push and pull consumers."""

    # --- start position of a new group: "first", "last", a datetime, or a timedelta before now
    start: str | datetime | timedelta = "last"
    broadcasting: bool = False  # every member receives every message; progress is kept in a local file
    strategy: str | Strategy = (
        average  # allocation of queues: a function of kerolox.client.consume.allocation
    )

    # --- limits of messages that are pulled but not done; pulling pauses when one is reached
    queue_messages_max: int = 1000
    queue_bytes_max: int = 100 << 20
    topic_messages_max: int = 0  # of all queues of a topic together; 0: no limit
    topic_bytes_max: int = 0

    # --- pulling
    read_from: str = LEADER  # or "follower", if there are followers. Without a leader: always followers
    pull_count: int = 32  # brokers limit it, too
    pull_bytes: int = 256 << 10
    hold_s: float = 15.0  # limit for which a broker holds a pull without messages
    error_pause_s: float = 1.0

    # --- intervals
    balance_s: float = 20.0
    save_s: float = 5.0
    close_s: float = 10.0  # limit for which close() waits for running handlers

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
        """Return the start time, for a start by time."""
        if isinstance(self.start, datetime):
            return int(self.start.timestamp() * 1000)
        ago = self.start if isinstance(self.start, timedelta) else timedelta(minutes=30)
        return now_ms - int(ago.total_seconds() * 1000)


@dataclass(frozen=True)
class PushOptions(ConsumerOptions):
    """Options of a push consumer."""

    workers: int = 20  # maximum number of concurrent handlers
    ordered: bool = False  # one handler per queue, in order; queues are locked at the broker
    queue_span_max: int = 2000  # not ordered: largest distance between the offsets of messages not done

    # --- when a handler fails
    attempts_max: int = -1  # attempts before a message becomes a dead letter; -1: 16, ordered: unlimited
    suspend_s: float = 1.0  # ordered: pause of a queue after a failure
    handler_s_max: float = 15 * 60.0  # not ordered: time after which a message is delivered to another member

    trace: bool = False
    trace_topic: str = TRACE_TOPIC

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.workers < 1:
            raise OptionError("workers", self.workers, "1 or more")
        if not 0.01 <= self.suspend_s <= 30:
            raise OptionError("suspend_s", self.suspend_s, "0.01 to 30 seconds")
        if self.ordered and self.broadcasting:
            raise OptionError("ordered", True, "no ordered with broadcasting, which does not share queues")


@dataclass(frozen=True)
class PullOptions(ConsumerOptions):
    """Options of a pull consumer."""

    auto_commit: bool = True  # a batch counts as done when the next one is requested
    hold_s: float = 20.0
    messages_max: int = 10_000  # limit of fetched messages in all queues


def expression_of(tags: str, sql: str | None) -> tuple[str, str]:
    """Return the filter expression of a subscription and its language.

    Raises FilterError for an SQL condition that brokers cannot use: brokers report it only in their log.
    """
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
