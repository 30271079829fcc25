"""``make crash``: hundreds of kills and power losses, and a file that says what came of them."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import platform
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from . import delays, lives, timers, transactions
from .killer import Killer, Tally
from .messages import MODES
from .nursery import Nursery
from .power import PowerCut

KILLS_PER_SEED = 20
LOSSES_PER_SEED = 5


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--transaction-kills", type=int, default=200)
    parser.add_argument("--timer-kills", type=int, default=200)
    parser.add_argument("--delay-kills", type=int, default=200)
    parser.add_argument("--power-seeds", type=int, default=100)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    logging.basicConfig(level=logging.CRITICAL)  # a killed store complains a lot, and rightly
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kerolox-crash-") as folder:
        kills = kill(Path(folder), args.kills, args.first_seed)
        around = {
            f"kill_around_{killers.around}": kill_around(killers, Path(folder), count, args.first_seed)
            for killers, count in (
                (transactions.Killer, args.transaction_kills),
                (timers.Killer, args.timer_kills),
                (delays.Killer, args.delay_kills),
            )
        }
        power = lose_power(Path(folder), args.power_seeds, args.first_seed)
    result = {
        "when": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": machine(),
        "seconds": round(time.monotonic() - began_s),
        "kill": kills,
        **around,
        "power_loss": power,
        "violations": 0,  # the first one ends the run with an error
    }
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def kill(folder: Path, kills: int, first_seed: int) -> dict[str, Any]:
    result: dict[str, Any] = {"kills": kills, "modes": {}}
    with Nursery() as nursery:
        for turn, mode in enumerate(MODES):
            goal = kills * (turn + 1) // len(MODES) - kills * turn // len(MODES)
            tally = Tally()
            seed = first_seed
            while tally.total < goal:
                killer = Killer(nursery, folder / f"{mode}-{seed}", mode, seed, tally)
                killer.run(min(KILLS_PER_SEED, goal - tally.total))
                killer.clear()
                seed += 1
                progress(f"kill {mode}: {tally.total} of {goal}")
            result["modes"][mode] = {
                "kills": tally.total,
                "seeds": [first_seed, seed - 1],
                "moments": dict(sorted(tally.kills.items())),
                "killed_too_late": tally.too_late,
                "verifications": tally.verifications,
                "of_them_after_a_crash": tally.crashed_opens,
                "acknowledged_messages": tally.acknowledged,
                "looked_for_and_found": tally.looked_for,
            }
    return result


def kill_around(killers: type[lives.Killer], folder: Path, kills: int, first_seed: int) -> dict[str, Any]:
    tally = killers.tally_class()
    seed = first_seed
    with Nursery() as nursery:
        while tally.total < kills:
            killer = killers(nursery, folder / f"{killers.around}-{seed}", seed, tally)
            killer.run(min(KILLS_PER_SEED, kills - tally.total))
            killer.clear()
            seed += 1
            progress(f"kill around {killers.around}: {tally.total} of {kills}")
    return {"seeds": [first_seed, seed - 1], **tally.dump()}


def lose_power(folder: Path, seeds: int, first_seed: int) -> dict[str, Any]:
    losses: Counter[str] = Counter()
    for seed in range(first_seed, first_seed + seeds):
        cut = PowerCut(folder / f"power-{seed}", seed)
        asyncio.run(cut.run(LOSSES_PER_SEED))
        cut.clear()
        losses["losses"] += cut.losses
        losses["acknowledged_messages"] += cut.acknowledged
        losses["looked_for_and_found"] += cut.looked_for
        progress(f"power loss: seed {seed - first_seed + 1} of {seeds}")
    return {"mode": "sync", "seeds": [first_seed, first_seed + seeds - 1], **losses}


def machine() -> dict[str, Any]:
    return {
        "cpus": os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def progress(text: str) -> None:
    end = "\r" if sys.stdout.isatty() else "\n"
    sys.stdout.write(f"{text:60}{end}")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
