"""A few dozen damaged places; ``make crash`` has thousands, in Apache's stores too."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from .damage import Harm, Trial, harms, make_image


@pytest.mark.parametrize(("name", "seed"), [("stopped", 7), ("killed", 8)])
def test_a_damaged_store_serves_everything_or_says_how_to_mend_it(
    tmp_path: Path, name: str, seed: int
) -> None:
    image = asyncio.run(make_image(tmp_path, name, count=120))
    trial = Trial(image, tmp_path)
    for harm in harms(image, random.Random(seed), len(image.files())):
        trial.run(harm)
    assert len(trial.tally.places) > 10, "every kind of file has its turn"


def test_a_trial_finds_what_is_missing(tmp_path: Path) -> None:
    """Of a message cut off where no checksum was, a trial must not say that it is served."""
    image = asyncio.run(make_image(tmp_path, "stopped", count=40))
    trial = Trial(image, tmp_path)
    image.held.records["A", 0][99] = b"a message that was never sent"
    image.held.codes["A", 0][99] = 0
    with pytest.raises(AssertionError, match="lacks 1 messages, the first is 99"):
        trial.run(Harm("lock", "flip", 0))
