"""The file of a log's epochs: what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from kerolox.protocol.ha_epochs import Epoch
from kerolox.store.disk.epoch_file import EpochFile, EpochsFall
from kerolox.store.disk.files import Files


def test_an_epoch_heard_late_does_not_take_the_place_of_a_later_one(tmp_path: Path) -> None:
    """A broker is elected while it copies, and what it was about to hear of comes after that."""
    file = EpochFile(Files(), tmp_path / "epochs")
    file.load()
    file.begin(3, 0, 0)
    file.begin(5, 671, 0)
    with pytest.raises(EpochsFall, match="epoch 4 from 671 has ended: epoch 5 began at 671"):
        file.heard(Epoch(4, 671), 0)
    file.heard(Epoch(5, 671), 0)
    assert file.entries == (Epoch(3, 0), Epoch(5, 671))
