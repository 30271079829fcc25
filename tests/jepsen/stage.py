"""Everything that clusters stand on, made and taken down in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.rig.loads import Load, OurLoad
from tests.rig.loop_thread import LoopThread
from tests.rig.nursery import Nursery

from .cluster import Ground
from .disks import Disks
from .history import ClusterHistory
from .nodes import IMPORTS
from .wires import Wires

SEND_S = 1.0
PACE_S = 0.015


@contextmanager
def standing(wires: Wires, folder: Path) -> Iterator[Ground]:
    """Inside the network of the clients."""
    with (
        Disks(folder / "disks") as disks,
        Nursery(IMPORTS) as nursery,
        LoopThread() as beside,
    ):
        yield Ground(wires, disks, nursery, beside)


def our_load(
    ground: Ground, nameserver: str, topic: str, history: ClusterHistory, seed: int
) -> Sequence[Load]:
    return [OurLoad(ground.beside, nameserver, topic, history, seed, timeout_s=SEND_S, pace_s=PACE_S)]
