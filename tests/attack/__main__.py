"""``make attack``: every request code on every port, asked for in every way that must not work; records in
bodies, relayed requests, and load by strangers, under which an honest client is measured."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import platform
import sys
import tempfile
import time
from pathlib import Path

from .forged import attack_records, ledger
from .load import LoadOutcome, load_all
from .relayed import attack_relays
from .story import Outcome, attack_all
from .world import running_world


def say(text: str) -> None:
    print(text, flush=True)


async def run(seeds: list[int]) -> list[Outcome]:
    found = []
    for seed in seeds:
        with tempfile.TemporaryDirectory(prefix="kerolox-attack-") as place:
            async with running_world(Path(place)) as world:
                outcome = await attack_all(world, seed=seed, progress=say)
            await attack_records(Path(place, "log"), outcome)
            await attack_records(Path(place, "ledger"), outcome, **ledger())
            say(f"forged records: {outcome.attempts} attempts, {len(outcome.violations)} violations")
            await attack_relays(Path(place, "relayed"), outcome)
            say(f"relayed requests: {outcome.attempts} attempts, {len(outcome.violations)} violations")
            found.append(outcome)
    return found


WAIT_MS_MAX = 300.0  # of an honest client, on a machine that has nothing else to do


def under_load() -> tuple[LoadOutcome, list[str]]:
    found = load_all(progress=lambda text: print(text, flush=True))
    late = [
        f"{name}: an honest client waited {wait_ms:.0f} ms, more than {WAIT_MS_MAX:g}"
        for name, wait_ms in found.waits_ms.items()
        if wait_ms > WAIT_MS_MAX
    ]
    return found, [*found.violations, *late]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.attack", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=1, help="each with servers of its own")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    began_s = time.monotonic()
    outcomes = asyncio.run(run([arguments.seed + number for number in range(arguments.rounds)]))
    loaded, late = under_load()
    violations = [text for outcome in outcomes for text in outcome.violations]
    result = {
        "when": time.strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "seconds": round(time.monotonic() - began_s),
        "rounds": arguments.rounds,
        "seed": arguments.seed,
        "attempts": sum(outcome.attempts for outcome in outcomes),
        "succeeded": len(violations),
        "by_attack": dict(sum((outcome.by_attack for outcome in outcomes), type(outcomes[0].by_attack)())),
        "by_listener": dict(
            sum((outcome.by_listener for outcome in outcomes), type(outcomes[0].by_listener)())
        ),
        "answered_to_every_known_user": dict(
            sum((outcome.for_everybody for outcome in outcomes), type(outcomes[0].for_everybody)())
        ),
        "longest_wait_ms_of_an_honest_client": loaded.waits_ms,
        "stopped_in_s": loaded.stop_s,
        "log_kb_under_load": round(loaded.log_bytes / 1000),
    }
    violations += late
    print(json.dumps(result, indent=2))
    for text in violations[:50]:
        print("WRONG:", text)
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(result, indent=2) + "\n")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
