"""Some places of the matrix against a broker in a process of its own, whose system calls fail."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from .failing_calls import compiler
from .process_run import sample
from .process_scene import process_scene

PLACES = ("log-read-EMFILE", "queue-write-EIO")


@pytest.mark.skipif(sys.platform != "linux" or compiler() is None, reason="LD_PRELOAD and a C compiler")
async def test_a_broker_whose_system_calls_fail_keeps_every_message(tmp_path: Path) -> None:
    wrong: list[str] = []
    async with process_scene(tmp_path) as ours:
        for place in sample():
            if place.name in PLACES:
                wrong += await ours.run(place)
                assert ours.hits, place.name
    assert wrong == []


def test_the_sample_has_every_kind_of_file_that_a_broker_at_work_uses() -> None:
    assert set(PLACES) <= {place.name for place in sample()}
    assert len({place.kind for place in sample()}) == 8
