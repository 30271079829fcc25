"""Damaged files of the timer: nobody may notice but the log."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
from pathlib import Path

import pytest

from kerolox.store.timer.wheel import SLOT_BYTES
from tests.crash.damage import Harm, Image, Trial, make_image


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    return asyncio.run(make_image(tmp_path_factory.mktemp("timers"), "stopped", count=80))


def slots(image: Image) -> list[int]:
    """Where the wheel has a slot with messages."""
    moments = sorted({moment for _, moment in image.timers})
    return [moment % 1_209_600 * SLOT_BYTES for moment in moments]


@pytest.mark.parametrize("field", [0, 8, 16, 24])
def test_a_slot_of_the_wheel(image: Image, tmp_path: Path, field: int) -> None:
    """The moment, its first and last unit, how many wait: each once lost the messages of a moment."""
    trial = Trial(image, tmp_path)
    place = slots(image)[0] + field
    assert trial.run(Harm("timerwheel", "flip", place + 7 - 4 * (field == 24), 3)) == "served, and said"
    assert trial.run(Harm("timerwheel", "zero", place, 8)) == "served, and said"


@pytest.mark.parametrize("field", [0, 4, 12, 16, 24, 28, 36])
def test_a_unit_of_the_log(image: Image, tmp_path: Path, field: int) -> None:
    trial = Trial(image, tmp_path)
    for at in (0, 52, 104):
        harm = Harm("timerlog/00000000000000000000", "flip", at + field + 1, 2)
        assert trial.run(harm) == "served, and said"


@pytest.mark.parametrize("field", [0, 8, 16, 24])
def test_the_checkpoint(image: Image, tmp_path: Path, field: int) -> None:
    """A time far ahead once made every timer count as delivered."""
    trial = Trial(image, tmp_path)
    for byte in range(8):
        assert trial.run(Harm("config/timercheck", "flip", field + byte, 6)) == "served, and said"


def test_all_of_them_are_gone(image: Image, tmp_path: Path) -> None:
    trial = Trial(image, tmp_path)
    damaged = dataclasses.replace(image, root=tmp_path / "image")
    shutil.copytree(image.root, damaged.root, ignore=shutil.ignore_patterns("timerwheel", "timerlog"))
    trial.image = damaged
    trial.run(Harm("kerolox.timer", "flip", 300))


@pytest.mark.parametrize("name", ["timermetrics", "transactionMetrics"])
def test_garbage_for_figures(image: Image, tmp_path: Path, name: str) -> None:
    """They are mere figures, and stopped the start."""
    trial = Trial(image, tmp_path)
    assert trial.run(Harm(f"config/{name}", "zero", 0, 40)) == "served, and said"
