"""Two hundred places of the fault matrix; ``make faults`` goes through all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from kerolox.store.errors import Operation
from kerolox.store.failures import Kind

from .places import GATE_ERRORS, kind_of, places
from .scene import KINDS, scene


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name.lower())
async def test_nothing_is_lost_or_skipped_while_files_fail(tmp_path: Path, kind: Kind) -> None:
    wrong: list[str] = []
    reached = 0
    async with scene(tmp_path) as ours:
        for place in places(kind):
            if place.number in GATE_ERRORS:
                wrong += await ours.run(place)
                reached += ours.hits > 0
        wrong += await ours.same_logs()
    assert wrong == []
    assert reached


async def test_a_broker_starts_when_its_files_can_be_used(tmp_path: Path) -> None:
    wrong: list[str] = []
    async with scene(tmp_path) as ours:
        for name in (
            "lock-create-EIO",
            "lock-read-EMFILE",
            "table-read-EIO",
            "note-read-EACCES",
            "log-read-EIO",
        ):
            (place,) = [each for each in places(*Kind) if each.name == name]
            wrong += await ours.run_start(place)
            assert ours.hits, name
    assert wrong == []


async def test_a_ledger_goes_on_when_its_index_can_be_written(tmp_path: Path) -> None:
    wrong: list[str] = []
    async with scene(tmp_path, ledger=True) as ours:
        for place in places(Kind.LEDGER_INDEX):
            if place.number in GATE_ERRORS and place.operation in (Operation.OPEN, Operation.WRITE):
                wrong += await ours.run(place)
                assert ours.hits
    assert wrong == []


def test_the_gate_goes_through_two_hundred_places() -> None:
    assert sum(place.number in GATE_ERRORS for place in places(*KINDS)) >= 190


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/s/commitlog/00000000000000000000", Kind.LOG),
        ("/s/consumequeue/T/0/00000000000000000000", Kind.QUEUE),
        ("/s/index/20260101000000000", Kind.INDEX),
        ("/s/timerwheel", Kind.TIMER),
        ("/s/config/timercheck", Kind.TIMER),
        ("/s/config/topics.json.tmp", Kind.TABLE),
        ("/s/kerolox.marks", Kind.CHECKPOINT),
        ("/s/kerolox.sums.tmp", Kind.SUMS),
        ("/s/kerolox.deleted", Kind.NOTE),
        ("/s/dledger-n0/index/00000000000000000000", Kind.LEDGER_INDEX),
        ("/s/dledger-n0/checkpoint", Kind.CHECKPOINT),
        ("/s/lock", Kind.LOCK),
        ("/s", None),
    ],
)
def test_files_belong_to_a_kind(path: str, kind: Kind | None) -> None:
    assert kind_of(path) is kind
