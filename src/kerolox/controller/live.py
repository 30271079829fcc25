"""Which brokers gave a sign of life in time, and over which connection. In memory only.

Time is monotonic here: a clock that is set does not kill brokers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

from kerolox.clock import Clock
from kerolox.controller.requests import LastSign, LiveBrokers
from kerolox.front.caller import Caller

log = logging.getLogger(__name__)

HEARTBEAT_TIMEOUT_S = 10.0  # of a broker that does not say; RocketMQ's brokers say the same
TIMEOUT_S_MIN, TIMEOUT_S_MAX = 0.1, 600.0  # that a broker may ask for
LOST_LATELY_S = 5.0  # a broker that lives connects again within a second
LIVE_MAX = 10_000  # brokers; others are not heard
ENDED_MAX = 1000  # processes that are known to be over

ReplicaKey = tuple[str, int]  # group and id


class LiveBroker:
    """A broker that lives."""

    __slots__ = ("caller", "heard_s", "sign", "timeout_s")

    def __init__(self, caller: Caller, sign: LastSign, heard_s: float, timeout_s: float) -> None:
        self.caller = caller
        self.sign = sign
        self.heard_s = heard_s
        self.timeout_s = timeout_s


class LiveTable:
    """The brokers that live. It is settled when everybody had time to be heard since its controller began to
    lead: before, another controller may have told a broker that it is heard, which it is not here."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began_s = clock.monotonic_s()
        self._groups: dict[str, dict[int, LiveBroker]] = {}
        self._count = 0
        self._is_full = False
        self._lost: dict[ReplicaKey, float] = {}  # closed its connection, and when
        self._acts_until_s: dict[ReplicaKey, float] = {}  # of those: its process may act so long
        self._ended: dict[tuple[str, int, int], None] = {}  # processes that others have replaced
        self._silent: set[ReplicaKey] = set()  # heard since it began, and not any more before it was settled
        self._before: set[ReplicaKey] = set()  # last heard before its controller began to lead

    def __len__(self) -> int:
        return self._count

    @property
    def is_settled(self) -> bool:
        return self._clock.monotonic_s() - self._began_s >= HEARTBEAT_TIMEOUT_S

    def begin(self) -> None:
        """This controller leads from now on. Who was not heard before may be there all the same: another
        controller may have heard it, and told it so, until now. But whose connections have just closed is
        gone, for it would have come again."""
        self._began_s = self._clock.monotonic_s()
        self._silent.clear()
        self._forget_lost(LOST_LATELY_S)
        self._before = {key for key, _ in self._all()}

    def hear(self, key: ReplicaKey, caller: Caller, sign: LastSign, timeout_s: float | None = None) -> None:
        """A heartbeat: what it says now counts, and the connection it came over."""
        group, id = key
        brokers = self._groups.get(group, {})
        if id not in brokers and self._count >= LIVE_MAX:
            if not self._is_full:
                log.warning(
                    "broker_not_heard group=%r id=%d limit=%d next='a controller keeps no more brokers'",
                    group,
                    id,
                    LIVE_MAX,
                )
            self._is_full = True
            return
        if timeout_s is None or timeout_s <= 0:
            timeout_s = HEARTBEAT_TIMEOUT_S
        timeout_s = min(max(timeout_s, TIMEOUT_S_MIN), TIMEOUT_S_MAX)
        self._lost.pop(key, None)
        self._acts_until_s.pop(key, None)
        self._silent.discard(key)
        self._before.discard(key)
        self._count += id not in brokers
        self._groups[group] = brokers
        brokers[id] = LiveBroker(caller, sign, self._clock.monotonic_s(), timeout_s)

    def note(self, key: ReplicaKey, caller: Caller) -> None:
        """A request of a broker about itself is a sign of life, too: it may come before the heartbeats."""
        known = self._groups.get(key[0], {}).get(key[1])
        if known is None:
            self.hear(key, caller, LastSign())
        else:
            known.heard_s = self._clock.monotonic_s()
            known.caller = caller
            self._before.discard(key)

    def lose(self, caller: Caller) -> list[ReplicaKey]:
        """A connection has closed: its brokers are gone, unless they have spoken over another one since."""
        lost = [key for key, broker in self._all() if broker.caller is caller]
        until = {
            key: broker.heard_s + min(broker.timeout_s, HEARTBEAT_TIMEOUT_S)
            for key, broker in self._all()
            if broker.caller is caller
        }
        self._drop(lost)
        self._forget_lost(HEARTBEAT_TIMEOUT_S)
        now_s = self._clock.monotonic_s()
        self._acts_until_s |= {key: until[key] for key in lost[: LIVE_MAX - len(self._acts_until_s)]}
        self._lost.update((key, now_s) for key in lost[: LIVE_MAX - len(self._lost)])
        return lost

    def expire(self) -> list[tuple[ReplicaKey, Caller]]:
        """Those that were silent for too long are gone. Who, and the connections they had."""
        now_s = self._clock.monotonic_s()
        quiet = [(key, one.caller) for key, one in self._all() if not _lives(one, now_s)]
        self._drop([key for key, _ in quiet])
        self._silent.update(key for key, _ in quiet if key not in self._before)
        if self.is_settled:
            self._silent.clear()
        return quiet

    def replaced(self, key: ReplicaKey, start: int) -> None:
        """Another process has this identity now: the one with this number is over."""
        self._ended[(*key, start)] = None
        while len(self._ended) > ENDED_MAX:
            del self._ended[next(iter(self._ended))]

    def counts(self) -> dict[str, int]:
        """How many live now, by group."""
        now_s = self._clock.monotonic_s()
        return {
            group: sum(_lives(one, now_s) for one in brokers.values())
            for group, brokers in self._groups.items()
        }

    def view(self, groups: Iterable[str]) -> LiveBrokers:
        """Who lives now, of these groups."""
        now_s = self._clock.monotonic_s()
        signs = {
            group: {id: one.sign for id, one in self._groups.get(group, {}).items() if _lives(one, now_s)}
            for group in groups
        }
        return LiveBrokers(
            signs,
            self.is_settled,
            frozenset(self._silent.union(self._lost)),
            frozenset(key for key, until_s in self._acts_until_s.items() if until_s > now_s),
            frozenset(self._ended),
        )

    def _all(self) -> Iterator[tuple[ReplicaKey, LiveBroker]]:
        for group, brokers in self._groups.items():
            for id, broker in brokers.items():
                yield (group, id), broker

    def _forget_lost(self, age_s: float) -> None:
        now_s = self._clock.monotonic_s()
        self._lost = {key: lost_s for key, lost_s in self._lost.items() if now_s - lost_s <= age_s}
        self._acts_until_s = {key: one for key, one in self._acts_until_s.items() if one > now_s}

    def _drop(self, gone: list[ReplicaKey]) -> None:
        for group, id in gone:
            del self._groups[group][id]
            self._count -= 1
            if not self._groups[group]:
                del self._groups[group]
        if gone:
            self._is_full = False


def _lives(broker: LiveBroker, now_s: float) -> bool:
    return now_s - broker.heard_s <= broker.timeout_s
