"""Notes of what a broker says: lines of its log, messages it gives to a reader, answers to producers."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable

from kerolox.protocol.codes import ResponseCode
from kerolox.protocol.command import Command
from kerolox.protocol.record import decode_records
from kerolox.testing.clock import ManualClock
from tests.broker.talk import Talk

QUIET_S = 60.0  # for which a line is not repeated


class Lines(logging.Handler):
    """Counts warnings and errors by their first word."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(logging.WARNING)
        self.words: Counter[str] = Counter()  # of the current place
        self._clock = clock
        self._last_s: dict[str, float] = {}
        self._quiet_s = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        if not record.name.startswith("kerolox.client"):  # they tell of every broker
            word = record.getMessage().split(" ", 1)[0]
            self.words[word] += 1
            self._last_s[word] = self._clock.monotonic_s()

    def has_any(self, *words: str) -> bool:
        """Return whether one of these was written at this place, or so shortly before that it is not
        repeated."""
        return any(word in self.words or self._last_s.get(word, -1.0) >= self._quiet_s for word in words)

    def begin(self) -> None:
        """Forget the place before."""
        self.words.clear()
        self._quiet_s = self._clock.monotonic_s() - QUIET_S


class Reader:
    """Pulls one queue and notices what it is made to skip."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.offset = 0
        self.bodies: list[bytes] = []
        self.wrong: list[str] = []

    async def pull(self, talk: Talk) -> bool:
        """One pull; whether it brought messages."""
        answer = await talk.pull(self.topic, 0, self.offset, consumer_group="readers")
        after = int(answer.fields.get("nextBeginOffset", self.offset))
        if answer.code != 0:
            if answer.code in _MOVES and after != self.offset:
                self.wrong.append(
                    f"{self.topic}: a pull at {self.offset} was sent to {after} ({answer.remark})"
                )
                self.offset = after
            return False
        found = decode_records(answer.body)
        if [message.queue_offset for message in found] != list(range(self.offset, after)):
            self.wrong.append(f"{self.topic}: a pull at {self.offset} skipped some before {after}")
        self.bodies += [message.body for message in found]
        self.offset = after
        return True


_MOVES = (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED)


class Sent:
    """Answers that producers got, by topic."""

    def __init__(self, topics: Iterable[str]) -> None:
        self.taken: dict[str, set[bytes]] = {topic: set() for topic in topics}
        self.refused: Counter[str] = Counter()  # by answer code and remark, of the current place
        self.unanswered = 0

    def note(self, topic: str, body: bytes, answer: Command | None) -> bool:
        if answer is None:
            self.unanswered += 1
        elif answer.code == 0:
            self.taken[topic].add(body)
            return True
        else:
            self.refused[f"{answer.code} {(answer.remark or '')[:200]}"] += 1
        return False
