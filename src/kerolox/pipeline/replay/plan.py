"""What a replay is to do, written down before it sends anything, so that a second start goes on.

A plan names the queues messages come from, how far each reaches, and the queue each goes to. Of the queues
they go to it has the end as it was when the plan was made: what the replay has sent lies behind that, marked
with its id, and is found again there. So the plan never has to be written while messages are sent.
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
    """A replay that cannot begin, or not go on."""


class ReplayChoice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which messages, and where to."""

    topics: tuple[str, ...] = ()  # all but the brokers' own
    since_ms: int | None = None
    until_ms: int | None = None  # not including it
    since: str = ""  # as it was written: "2h" means another time whenever it is read
    until: str = ""
    tags: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    where: str = ""
    to_topic: str = ""
    topic_map: dict[str, str] = {}

    def target(self, topic: str) -> str:
        return self.to_topic or self.topic_map.get(topic, topic)


class SourceQueue(msgspec.Struct, frozen=True):
    """A queue that messages come from, and the one they go to."""

    queue: Queue
    first: int
    last: int
    count: int
    target: Queue
    since: int  # end of the target when the plan was made

    @property
    def name(self) -> str:
        return name_of(self.queue)


class ReplayPlan(msgspec.Struct, kw_only=True):
    """One replay."""

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
    """A queue as marks name it. No topic or broker has a slash."""
    return f"{queue.topic}/{queue.broker}/{queue.queue_id}"


def default_state() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(base, "kerolox", "replays")


class PlanFile:
    """The plan of one replay on disk. Nobody else works at it while it is open."""

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
            raise ReplayError(f"replay {self.id} is under way: {error.holder}") from error
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
    """Refuse a range of times that has no message. A replay that goes on has the times it was begun with."""
    since_ms, until_ms = choice.since_ms, choice.until_ms
    if since_ms is not None and until_ms is not None and since_ms >= until_ms:
        raise OptionError(
            "--until", choice.until or until_ms, f"a time later than --since, {choice.since or since_ms}"
        )


def check_same(plan: ReplayPlan, source: str, choice: ReplayChoice) -> None:
    """Raises ReplayError when a replay that was begun is to go on with something else."""
    begun: dict[str, Any] = {"source": plan.source, **msgspec.to_builtins(plan.choice)}
    given: dict[str, Any] = {"source": source, **msgspec.to_builtins(choice)}
    for text, time in (("since", "since_ms"), ("until", "until_ms")):
        if given.get(text) and given[text] == begun.get(text):
            given[time] = begun[time]
    differing = sorted(key for key in begun | given if begun.get(key) != given.get(key))
    if differing:
        told = "; ".join(
            f"{key} was {json.dumps(begun.get(key))}, is {json.dumps(given.get(key))}" for key in differing
        )
        raise ReplayError(
            f"replay {plan.id} was begun otherwise: {told}. Go on with the same command, or take a new --id"
        )


def target_of(queue: Queue, writable: Sequence[Queue]) -> Queue:
    """The queue that messages of a queue go to: the one of the same name if there is one; else always the
    same one of those there are."""
    for target in writable:
        if (target.broker, target.queue_id) == (queue.broker, queue.queue_id):
            return target
    ordered = sorted(writable)
    of_broker = [target for target in ordered if target.broker == queue.broker] or ordered
    return of_broker[queue.queue_id % len(of_broker)]


def tasks_of(queues: Sequence[SourceQueue], count: int) -> list[list[SourceQueue]]:
    """The queues divided into at most so many tasks of about equal length, the longest first."""
    tasks: list[list[SourceQueue]] = [[] for _ in range(max(1, min(count, len(queues))))]
    lengths = [0] * len(tasks)
    for source in sorted(queues, key=lambda each: (-each.count, each.name)):
        shortest = lengths.index(min(lengths))
        tasks[shortest].append(source)
        lengths[shortest] += source.count
    return tasks
