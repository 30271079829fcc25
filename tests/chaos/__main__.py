"""``make chaos``: streaming queries killed at random, and a file that says what came of it."""

from __future__ import annotations

import argparse
import json
import platform
import random
import sys
import tempfile
import time
from pathlib import Path

from .story import Story, Tally

MASTER = "local-cluster[2,1,512]"  # two executors, each a process
VICTIMS = ("task", "executor", "driver", "broker", "nameserver")
KILLS_PER_STORY = 5


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--kills", type=int, default=30, help="for each guarantee")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    began_s = time.monotonic()
    result: dict[str, object] = {
        "when": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": {"python": platform.python_version(), "system": platform.platform(terse=True)},
        "master": MASTER,
    }
    for guarantee in ("effectively-once", "at-least-once"):
        tally = Tally()
        goal = args.kills if guarantee == "effectively-once" else max(1, args.kills // 6)
        seed = args.first_seed
        with tempfile.TemporaryDirectory(prefix="kerolox-chaos-") as folder:
            while (left := goal - sum(tally.kills.values())) > 0:
                chance = random.Random(f"victims-{guarantee}-{seed}")
                victims = chance.sample(VICTIMS, len(VICTIMS))[: min(left, KILLS_PER_STORY)]
                root = Path(folder) / f"{guarantee}-{seed}"
                # Every other time the broker is the leader of two under a controller.
                elected = seed % 2 == 1
                story = Story(root, seed, master=MASTER, guarantee=guarantee, tally=tally, elected=elected)
                story.run(victims)
                seed += 1
                progress(f"{guarantee}: {sum(tally.kills.values())} of {goal} kills, {tally.dump()}")
        result[guarantee.replace("-", "_")] = tally.dump()
    result["seconds"] = round(time.monotonic() - began_s)
    text = json.dumps(result, indent=2) + "\n"
    progress(text)
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(text, encoding="utf-8")


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
