"""Plan of a replay, stored before it sends anything, so that a second start can continue.

A plan has the source queues with their ranges, and the target queue of each. For target queues it has the
end offset at the time of the plan: messages of the replay are stored after it, marked with the replay's id,
and are found there again. So the plan need not be updated while messages are sent.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import msgspec

from kerolox.atomic_file import write_atomically
from kerolox.client.messages import Queue
from kerolox.errors import KeroloxError, OptionError
from kerolox.store.disk.files import Files
from kerolox.store.disk.lock import StoreLock
from kerolox.store.errors import StoreLocked

_allowed = re.compile(r"[A-Za-z0-9._-]{1,80}").fullmatch


class ReplayError(KeroloxError):
    """A replay cannot start or continue."""


class ReplayChoice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Choice of messages and targets."""

    topics: tuple[str, ...] = ()  # empty: all topics except internal ones
    since_ms: int | None = None
    until_ms: int | None = None  # exclusive
    since: str = ""  # original text; "2h" is a different time at each run
    until: str = ""
    tags: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    where: str = ""
    to_topic: str = ""
    topic_map: dict[str, str] = {}

    def target(self, topic: str) -> str:
        return self.to_topic or self.topic_map.get(topic, topic)


class SourceQueue(msgspec.Struct, frozen=True):
    """Source queue of a replay, and its target queue."""

    queue: Queue
    first: int
    last: int
    count: int
    target: Queue
    since: int  # end offset of the target when the plan was made

    @property
    def name(self) -> str:
        return name_of(self.queue)


class ReplayPlan(msgspec.Struct, kw_only=True):
    """Plan of one replay."""

    id: str
    begun_ms: int
    source: str
    choice: ReplayChoice
    queues: list[SourceQueue] = []
    finished_ms: int | None = None

    @property
    def count(self) -> int:
        return sum(source.count for source in self.queues)


def name_of(queue: Queue) -> str:
    """Return the name of a queue in marks. Topics and brokers contain no slash."""
    return f"{queue.topic}/{queue.broker}/{queue.queue_id}"


def default_state() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(base, "kerolox", "replays")


class PlanFile:
    """Plan of one replay on disk, locked against other processes while open."""

    def __init__(self, state: Path, id: str) -> None:
        if not _allowed(id) or id.startswith("."):
            raise OptionError("--id", id, "at most 80 letters, digits and . _ -")
        self.id = id
        self.path = state / id / "plan.json"
        self._lock = StoreLock(Files(), state / id)

    def __enter__(self) -> Self:
        try:
            self._lock.take()
        except StoreLocked as error:
            raise ReplayError(f"replay {self.id} is running: {error.holder}") from error
        return self

    def __exit__(self, *exc: object) -> None:
        self._lock.release()

    def read(self) -> ReplayPlan | None:
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            return msgspec.json.decode(content, type=ReplayPlan)
        except msgspec.DecodeError as error:
            raise ReplayError(f"{self.path} is not the plan of a replay: {error}") from error

    def write(self, plan: ReplayPlan) -> None:
        write_atomically(self.path, msgspec.json.format(msgspec.json.encode(plan)))


def check_times(choice: ReplayChoice) -> None:
    """Raise an error for an empty time range. A resumed replay keeps its original times."""
    since_ms, until_ms = choice.since_ms, choice.until_ms
    if since_ms is not None and until_ms is not None and since_ms >= until_ms:
        raise OptionError(
            "--until", choice.until or until_ms, f"a time later than --since, {choice.since or since_ms}"
        )


def check_same(plan: ReplayPlan, source: str, choice: ReplayChoice) -> None:
    """Raise ReplayError if a replay would continue with other arguments."""
    begun: dict[str, Any] = {"source": plan.source, **msgspec.to_builtins(plan.choice)}
    given: dict[str, Any] = {"source": source, **msgspec.to_builtins(choice)}
    for text, time in (("since", "since_ms"), ("until", "until_ms")):
        if given.get(text) and given[text] == begun.get(text):
            given[time] = begun[time]
    differing = sorted(key for key in begun | given if begun.get(key) != given.get(key))
    if differing:
        told = "; ".join(
            f"{key} was {json.dumps(begun.get(key))}, now {json.dumps(given.get(key))}" for key in differing
        )
        raise ReplayError(
            f"replay {plan.id} was started with other arguments: {told}. Repeat these, or use a new --id"
        )


def target_of(queue: Queue, writable: Sequence[Queue]) -> Queue:
    """Return the target queue of a source queue: the one with the same broker and id, else always the same
    one of the others.
    """
    for target in writable:
        if (target.broker, target.queue_id) == (queue.broker, queue.queue_id):
            return target
    ordered = sorted(writable)
    of_broker = [target for target in ordered if target.broker == queue.broker] or ordered
    return of_broker[queue.queue_id % len(of_broker)]


def tasks_of(queues: Sequence[SourceQueue], count: int) -> list[list[SourceQueue]]:
    """Divide the queues into at most ``count`` tasks of about equal length."""
    tasks: list[list[SourceQueue]] = [[] for _ in range(max(1, min(count, len(queues))))]
    lengths = [0] * len(tasks)
    for source in sorted(queues, key=lambda each: (-each.count, each.name)):
        shortest = lengths.index(min(lengths))
        tasks[shortest].append(source)
        lengths[shortest] += source.count
    return tasks
