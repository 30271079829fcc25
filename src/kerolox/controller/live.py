"""Brokers whose heartbeats arrive in time, with their connections. Kept only in memory.

Times are monotonic: setting the wall clock does not expire brokers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

from kerolox.clock import Clock
from kerolox.controller.requests import LastSign, LiveBrokers
from kerolox.front.caller import Caller

log = logging.getLogger(__name__)

HEARTBEAT_TIMEOUT_S = 10.0  # default of brokers that name none; the default of RocketMQ's brokers
TIMEOUT_S_MIN, TIMEOUT_S_MAX = 0.1, 600.0  # limits of the timeout that a broker may request
LOST_LATELY_S = 5.0  # a living broker reconnects within a second
LIVE_MAX = 10_000  # brokers; heartbeats of further ones are ignored
ENDED_MAX = 1000  # replaced processes remembered

ReplicaKey = tuple[str, int]  # group and id


class LiveBroker:
    """A living broker."""

    __slots__ = ("caller", "heard_s", "sign", "timeout_s")

    def __init__(self, caller: Caller, sign: LastSign, heard_s: float, timeout_s: float) -> None:
        self.caller = caller
        self.sign = sign
        self.heard_s = heard_s
        self.timeout_s = timeout_s


class LiveTable:
    """The living brokers.

    The table is settled once every broker had time to send a heartbeat since this controller began to lead.
    Before that, a broker may be alive although it is missing here: it may have reported to the previous
    leader.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began_s = clock.monotonic_s()
        self._groups: dict[str, dict[int, LiveBroker]] = {}
        self._count = 0
        self._is_full = False
        self._lost: dict[ReplicaKey, float] = {}  # time at which the connection closed
        # of lost brokers: end of the time in which the process may still act
        self._acts_until_s: dict[ReplicaKey, float] = {}
        self._ended: dict[tuple[str, int, int], None] = {}  # processes that were replaced by others
        # brokers that expired between the start of the term and its settling
        self._silent: set[ReplicaKey] = set()
        self._before: set[ReplicaKey] = set()  # brokers whose last heartbeat was before the term began

    def __len__(self) -> int:
        return self._count

    @property
    def is_settled(self) -> bool:
        return self._clock.monotonic_s() - self._began_s >= HEARTBEAT_TIMEOUT_S

    def begin(self) -> None:
        """Begin a term.

        A broker without a heartbeat may be alive: it may have reported to another controller until now. A
        broker whose connection closed recently is gone: it would have reconnected.
        """
        self._began_s = self._clock.monotonic_s()
        self._silent.clear()
        self._forget_lost(LOST_LATELY_S)
        self._before = {key for key, _ in self._all()}

    def hear(self, key: ReplicaKey, caller: Caller, sign: LastSign, timeout_s: float | None = None) -> None:
        """Store a heartbeat: its report and its connection replace the previous ones."""
        group, id = key
        brokers = self._groups.get(group, {})
        if id not in brokers and self._count >= LIVE_MAX:
            if not self._is_full:
                log.warning(
                    "broker_not_heard group=%r id=%d limit=%d next='the controller ignores brokers beyond "
                    "this limit'",
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
        """Count a broker's request about itself as a sign of life: it may precede the heartbeats."""
        known = self._groups.get(key[0], {}).get(key[1])
        if known is None:
            self.hear(key, caller, LastSign())
        else:
            known.heard_s = self._clock.monotonic_s()
            known.caller = caller
            self._before.discard(key)

    def lose(self, caller: Caller) -> list[ReplicaKey]:
        """Drop the brokers of a closed connection, unless they have used another one since. Return them."""
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
        """Drop the brokers whose heartbeats are overdue. Return them with their connections."""
        now_s = self._clock.monotonic_s()
        quiet = [(key, one.caller) for key, one in self._all() if not _lives(one, now_s)]
        self._drop([key for key, _ in quiet])
        self._silent.update(key for key, _ in quiet if key not in self._before)
        if self.is_settled:
            self._silent.clear()
        return quiet

    def replaced(self, key: ReplicaKey, start: int) -> None:
        """Record that another process has taken over this identity from process `start`."""
        self._ended[(*key, start)] = None
        while len(self._ended) > ENDED_MAX:
            del self._ended[next(iter(self._ended))]

    def counts(self) -> dict[str, int]:
        """Return the number of living brokers by group."""
        now_s = self._clock.monotonic_s()
        return {
            group: sum(_lives(one, now_s) for one in brokers.values())
            for group, brokers in self._groups.items()
        }

    def view(self, groups: Iterable[str]) -> LiveBrokers:
        """Return the living brokers of these groups."""
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
