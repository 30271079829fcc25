"""Questions to the controller about the in-sync set, of which one is not answered and the next is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from kerolox.broker.controlled.in_sync_changes import AGAIN_S, InSyncChanges
from kerolox.broker.controlled.known_sets import SetNotKept
from kerolox.broker.role.mastership import Mastership
from kerolox.errors import RequestFailed, RequestTimeout
from kerolox.protocol.bodies.controller import SyncStateSet
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import Command
from kerolox.replication.in_sync_set import InSyncSet
from kerolox.testing.clock import ManualClock
from tests.replication.epoch_kit import EpochSettings
from tests.replication.test_in_sync_set import Store

ALTER, WHICH = RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, RequestCode.CONTROLLER_GET_REPLICA_INFO
REFUSED = RequestFailed(ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED, "it is that one already")
SILENT = RequestTimeout("c", "any", 3.0)


class Asked:
    """A controller that answers as it is told to, in turn."""

    def __init__(self, *answers: Command | Exception) -> None:
        self.answers = list(answers)
        self.codes: list[int] = []

    async def ask(self, code: int, header: object = None, body: bytes = b"", **how: object) -> Command:
        self.codes.append(code)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def has_set(*members: int, set_epoch: int) -> Command:
    body = SyncStateSet(sync_state_set=frozenset(members), sync_state_set_epoch=set_epoch).encode()
    fields = {"masterBrokerId": "1", "masterAddress": "a:1", "masterEpoch": "3"}
    return Command(0, fields=fields, body=body)


class Kept:
    """What is on the disk of the leader; the first so many writes fail."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.sets: list[frozenset[int]] = []

    async def keep(self, told: Mastership) -> None:
        if self.failures:
            self.failures -= 1
            raise SetNotKept("No space left on device")
        self.sets.append(told.in_sync)


async def asked_for_two(
    controller: Asked, clock: ManualClock, known: Kept | None = None
) -> tuple[InSyncSet, Store]:
    """A leader alone in its set, whose follower 2 has everything, asks for {1, 2}."""
    store = Store()
    in_sync = InSyncSet(store, EpochSettings(), clock)  # type: ignore[arg-type]
    in_sync.lead(1, {1}, 10, 3)
    in_sync.joined(2)
    in_sync.acked(2, 0)
    options: Any = SimpleNamespace(broker_name="b", in_sync_check_ms=600_000)
    elections: Any = SimpleNamespace(
        mastership=Mastership(epoch=3, id=1, address="a:1"), id=1, known=known or Kept()
    )
    base: Any = SimpleNamespace(leadership=SimpleNamespace(leads=True), options=options, clock=clock)
    changes = InSyncChanges(base, in_sync, controller, elections, lambda: None)  # type: ignore[arg-type]
    changes.start()
    for _ in range(100):
        if not controller.answers:
            break
        await clock.advance(AGAIN_S)
        store.write(100)  # which the follower does not get
        if controller.answers:
            assert store.progress.confirmed == 0, "2 may be elected: it lacks this"
    await clock.advance(0.01)
    await changes.close()
    return in_sync, store


async def test_one_that_was_refused_because_it_was_taken_counts() -> None:
    """It was taken, the answer lost; it is refused, being the set already; and then nothing is heard for a
    while. All that time the controller may elect 2."""
    controller = Asked(SILENT, REFUSED, SILENT, SILENT, SILENT, has_set(1, 2, set_epoch=11))
    in_sync, _ = await asked_for_two(controller, ManualClock())
    assert controller.codes == [ALTER, ALTER, WHICH, WHICH, WHICH, WHICH]
    assert (in_sync.members, in_sync.set_epoch) == ({1, 2}, 11)


async def test_one_that_was_refused_and_not_taken_does_not_count() -> None:
    controller = Asked(SILENT, REFUSED, has_set(1, set_epoch=10))
    in_sync, store = await asked_for_two(controller, ManualClock())
    assert in_sync.members == {1}
    store.write(100)
    assert store.progress.confirmed == store.progress.committed


async def test_a_set_counts_when_it_is_on_the_disk() -> None:
    """Else nobody would know of it when an older copy of the controllers' state is restored."""
    known = Kept(failures=1)
    taken = has_set(1, 2, set_epoch=11)
    controller = Asked(taken, REFUSED, taken)
    in_sync, _ = await asked_for_two(controller, ManualClock(), known)
    assert controller.codes == [ALTER, ALTER, WHICH]
    assert (known.failures, known.sets) == (0, [frozenset({1, 2})])
    assert (in_sync.members, in_sync.set_epoch) == ({1, 2}, 11)
