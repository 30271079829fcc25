"""The damage part of ``make crash``: thousands of places in every file, and what came of them.

Stores of ours and of Apache's broker, stopped and killed. The first broken promise ends the run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from tests.peers.jars import PeersUnavailable, get_jars

from .__main__ import machine, progress
from .damage import Image, Tally, Trial, harms, make_image, make_java_image

IMAGES: dict[str, Callable[[Path, str], Image]] = {
    "stopped": lambda folder, name: asyncio.run(make_image(folder, name)),
    "killed": lambda folder, name: asyncio.run(make_image(folder, name)),
    "extended-stopped": lambda folder, name: asyncio.run(make_image(folder, name, queue_extension=True)),
    "extended-killed": lambda folder, name: asyncio.run(make_image(folder, name, queue_extension=True)),
    "apache-stopped": make_java_image,
    "apache-killed": make_java_image,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.damage_run", description=__doc__)
    parser.add_argument("--places", type=int, default=6000)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--minutes", type=float, help="end after this time, with the places tried until then")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    began_s = time.monotonic()
    names = list(IMAGES)
    try:
        get_jars()
        left_out = ""
    except PeersUnavailable as error:
        left_out = str(error)
        names = [name for name in names if not name.startswith("apache")]
    end_s = None if args.minutes is None else time.time() + args.minutes * 60
    with ProcessPoolExecutor(args.workers) as pool:
        jobs = [
            pool.submit(
                run, name, args.places // len(names), args.first_seed + turn, _share(end_s, turn, names, args)
            )
            for turn, name in enumerate(names)
        ]
        stores = {name: job.result() for name, job in zip(names, jobs, strict=True)}
    result = {
        "when": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": machine(),
        "seconds": round(time.monotonic() - began_s),
        "places": sum(store["places"] for store in stores.values()),
        "stores": stores,
        "apache_left_out": left_out,
        "violations": 0,  # the first one ends the run with an error
    }
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def _share(end_s: float | None, turn: int, names: list[str], args: argparse.Namespace) -> float | None:
    """When a store has to be done, so that the ones after it have their time."""
    if end_s is None:
        return None
    left_s = end_s - time.time()
    return time.time() + left_s * (turn // args.workers + 1) / -(-len(names) // args.workers)


def run(name: str, places: int, seed: int, end_s: float | None) -> dict[str, Any]:
    """Damage one store that often, or until that time."""
    logging.getLogger("kerolox").propagate = False  # a damaged store complains a lot, and rightly
    with tempfile.TemporaryDirectory(prefix="kerolox-damage-") as text:
        folder = Path(text)
        image = IMAGES[name](folder, name)
        trial = Trial(image, folder, Tally())
        for turn, harm in enumerate(harms(image, random.Random(seed), places), 1):
            if end_s is not None and time.time() > end_s:
                break
            trial.run(harm)
            if turn % 50 == 0:
                progress(f"damage {name}: {turn} of {places}")
        return {"seed": seed, "messages": image.held.count, **trial.tally.dump()}


if __name__ == "__main__":
    main()
