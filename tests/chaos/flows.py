"""Pipelines killed at random, over topics that are made anew, and a file that says what came of it.

``python -m tests.chaos.flows --kills 30``: so many kills, three in the life of a topic at most.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
from pathlib import Path

from .__main__ import progress
from .flow_story import FlowStory, FlowTally

KILLS_PER_TOPIC = 3


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.flows", description=__doc__)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--topics", type=int, default=3, help="how often a story makes its topic")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    began_s = time.monotonic()
    total = FlowTally()
    seed = args.first_seed
    while (left := args.kills - total.kills.total()) > 0:
        kills = min(KILLS_PER_TOPIC, -(-left // args.topics))
        tally = FlowTally()
        with tempfile.TemporaryDirectory(prefix="kerolox-chaos-flows-") as folder:
            FlowStory(Path(folder) / "story", seed, tally).run(kills, args.topics)
        total = added(total, tally)
        seed += 1
        progress(f"{total.kills.total()} of {args.kills} kills, {total.dump()}")
    result = {
        "when": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": {"python": platform.python_version(), "system": platform.platform(terse=True)},
        **total.dump(),
        "seconds": round(time.monotonic() - began_s),
    }
    text = json.dumps(result, indent=2) + "\n"
    progress(text)
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(text, encoding="utf-8")


def added(one: FlowTally, other: FlowTally) -> FlowTally:
    """The figures of two stories together."""
    return FlowTally(
        one.kills + other.kills,
        one.runs + other.runs,
        one.topics_made_anew + other.topics_made_anew,
        one.noticed + other.noticed,
        one.messages + other.messages,
        one.bad_rows + other.bad_rows,
    )


if __name__ == "__main__":
    main()
