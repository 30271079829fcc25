"""``make simulate``: schedules by the thousand, and a file that says what came of them.

``--replay SEED`` plays one again and prints all that happened in it, in order.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import platform
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from . import mutants
from .elections import run_elections
from .schedule import Outcome, run_schedule, seeds_with

BATCH = 50  # schedules of one process: what they leave in memory goes with it
FAILURES_MAX = 20  # then it ends: there is enough to look at

Run = Callable[[int], Outcome]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.simulate", description=__doc__)
    parser.add_argument("--schedules", type=int, default=100)
    parser.add_argument("--seed-from", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--elections", action="store_true", help="controllers alone, without messages")
    parser.add_argument("--mutant", choices=sorted(mutants.MUTANTS), help="break the product on purpose")
    parser.add_argument("--mutants", action="store_true", help="show first that faults put in are found")
    parser.add_argument("--until-found", action="store_true", help="end with the first failure")
    parser.add_argument("--replay", type=int, metavar="SEED")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # so that a seed is the same story everywhere
        os.execve(sys.executable, [sys.executable, "-m", "tests.simulate", *sys.argv[1:]], dict(os.environ, PYTHONHASHSEED="0"))  # fmt: skip  # noqa: E501
    if args.replay is not None:
        sys.exit(replay(args.replay, args.elections, args.mutant))
    began_s = time.monotonic()
    total = Totals()
    if args.mutants:
        total.found = {name: first_found(name, args.workers) for name in sorted(mutants.MUTANTS)}
    seeds = range(args.seed_from, args.seed_from + args.schedules)
    for outcome in outcomes(seeds, args.workers, args.elections, args.mutant):
        total.add(outcome)
        if outcome.wrong:
            progress(f"seed {outcome.seed}: {'; '.join(outcome.wrong)[:1000]}")
        if total.schedules % 500 == 0:
            taken_s = time.monotonic() - began_s
            progress(f"{total.schedules} schedules in {taken_s:.0f} s, {len(total.failed)} failed")
            if args.out is not None:
                args.out.write_text(json.dumps(total.told(taken_s, args), indent=2) + "\n")
        if len(total.failed) >= (1 if args.until_found else FAILURES_MAX):
            break
    told = total.told(time.monotonic() - began_s, args)
    progress(json.dumps(told, indent=2))
    if args.out is not None:
        args.out.write_text(json.dumps(told, indent=2) + "\n")
    sys.exit(bool(total.failed) or None in total.found.values())


def replay(seed: int, elections: bool, mutant: str | None) -> int:
    with mutants.planted(mutant):
        if elections:
            found = run_elections(seed, trace=True)
            story, wrong = found.story, found.wrong
        else:
            outcome = run_schedule(seed, trace=True)
            story, wrong = outcome.story, outcome.wrong
    for line in story:
        progress(line)
    for sentence in wrong:
        progress(f"WRONG: {sentence}")
    return bool(wrong)


def first_found(mutant: str, workers: int) -> int | None:
    """How many schedules it took to find a fault that was put in; None: it was not found."""
    tried = 0
    for elections, seeds in ((True, list(range(200))), (False, seeds_with(mutants.NEEDS.get(mutant), 400))):
        for outcome in outcomes(seeds, workers, elections, mutant):
            tried += 1
            if outcome.wrong:
                progress(f"{mutant} found after {tried} schedules: {outcome.wrong[0][:200]}")
                return tried
        tried = 0
    progress(f"{mutant} was NOT found")
    return None


def outcomes(seeds: Sequence[int], workers: int, elections: bool, mutant: str | None) -> Iterator[Outcome]:
    jobs = [(seed, elections, mutant) for seed in seeds]
    if workers <= 1:
        yield from map(_run, jobs)
        return
    gc.freeze()  # what is imported stays, and need not be looked at after each of them
    with multiprocessing.get_context("fork").Pool(workers, maxtasksperchild=BATCH) as pool:
        yield from pool.imap_unordered(_run, jobs)


def _run(job: tuple[int, bool, str | None]) -> Outcome:
    seed, elections, mutant = job
    with mutants.planted(mutant):
        if not elections:
            outcome = run_schedule(seed)
            outcome.story = []
            return outcome
        found = run_elections(seed)
        return Outcome(seed, found.wrong, Counter(found.faults), elections=found.masters, steps=found.steps)


class Totals:
    """All schedules together."""

    def __init__(self) -> None:
        self.schedules = 0
        self.failed: dict[int, list[str]] = {}
        self.faults: Counter[str] = Counter()
        self.sends: Counter[str] = Counter()
        self.seen = self.elections = self.steps = self.needs_people = 0
        self.virtual_s = self.cpu_s = 0.0
        self.settled_s: list[float] = []
        self.found: dict[str, int | None] = {}  # a fault that was put in, and after how many schedules

    def add(self, outcome: Outcome) -> None:
        self.schedules += 1
        self.faults += outcome.faults
        self.sends += outcome.sends
        self.seen += outcome.seen
        self.needs_people += outcome.needs_people
        self.elections += outcome.elections
        self.steps += outcome.steps
        self.virtual_s += outcome.virtual_s
        self.cpu_s += outcome.cpu_s
        self.settled_s.append(outcome.settled_s)
        if outcome.wrong:
            self.failed[outcome.seed] = outcome.wrong

    def told(self, seconds: float, args: argparse.Namespace) -> dict[str, object]:
        settled = sorted(self.settled_s)
        return {
            "what": "controllers alone" if args.elections else "controllers and whole brokers",
            "schedules": self.schedules,
            "first_seed": args.seed_from,
            "need_people": self.needs_people,
            "failed": {str(seed): wrong[:3] for seed, wrong in sorted(self.failed.items())},
            "faults": sum(self.faults.values()),
            "faults_by_kind": dict(sorted(self.faults.items())),
            "elections": self.elections,
            "sends": sum(self.sends.values()),
            "sends_by_status": dict(sorted(self.sends.items())),
            "messages_read": self.seen,
            "steps": self.steps,
            "virtual_seconds": round(self.virtual_s),
            "settled_after_s": {
                "p50": round(settled[len(settled) // 2], 1) if settled else 0,
                "max": round(settled[-1], 1) if settled else 0,
            },
            "faults_put_in_found_after": self.found,
            "cpu_seconds": round(self.cpu_s),
            "seconds": round(seconds),
            "workers": args.workers,
            "python": platform.python_version(),
            "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        }


def progress(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
