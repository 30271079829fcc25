"""``split`` and ``merge`` killed at each of their steps.

Tasks run in the same process, one after the other: so the steps are the same each time, and Spark need not
start for each.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from kerolox.pipeline.transfer import transfer as made_by
from tests.pipeline.rebuild_stores import layout_of
from tests.pipeline.step_kills import Steps, killed_at


class InTurn:
    """Runner in this process, one task after the other."""

    name = "this process"
    cores = 1
    is_here = True

    def run(self, work: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        return [work(item) for item in items]

    def check_driver(self, address: str, module: str, extra: str) -> None:
        pass


def request(roots: Sequence[Path], to: Path, topics: Sequence[str] = ()) -> made_by.TransferRequest:
    layouts = [msgspec.structs.replace(layout_of(root), light_queues=False) for root in roots]
    return made_by.TransferRequest(layouts, str(to), topics=tuple(topics), part_bytes=40_000)


if __name__ == "__main__":  # python -m tests.pipeline.transfer_killing SOURCES TOPICS TO NUMBERS
    sources, topics, to = json.loads(sys.argv[1]), json.loads(sys.argv[2]), Path(sys.argv[3])
    numbers: list[int] = json.loads(sys.argv[4])
    roots = [Path(source) for source in sources]

    def transferred(number: int, steps: Steps) -> None:
        place = Path(f"{to}-{number}")
        steps.of_files(place)
        made_by.transfer(InTurn(), request(roots, place, topics))
        sys.stdout.write(json.dumps(steps.done))

    if numbers:
        killed_at(numbers, transferred)
    else:  # what the steps are
        transferred(0, Steps())
