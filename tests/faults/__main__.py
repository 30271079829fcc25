"""``make faults``: every place of the fault matrix, and a file that says what came of it.

The matrix goes through the file seam, while clients work and while the broker starts, in both flush modes.
Then a sample of it happens to a broker in a process of its own, by a library that fails its system calls.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from kerolox.store.failures import Kind
from kerolox.store.options import FlushMode
from tests.crash.__main__ import machine

from .places import Place, places
from .process_run import run_process
from .seam_run import LEFT_OUT, Outcome, jobs, run_job

WORKERS = 2


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--only", help="one place by its name, as log-write-EIO, or a kind of file, as log")
    parser.add_argument("--part", choices=("seam", "process"), help="only this part")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.only and not chosen(args.only):
        parser.error(f"no place is named {args.only}; places are named as {places(Kind.LOG)[0].name}")
    began_s = time.monotonic()
    result: dict[str, Any] = {"when": time.strftime("%Y-%m-%d", time.gmtime()), "machine": machine()}
    violations: list[str] = []
    if args.part != "process":
        result["seam"] = seam(args.only, violations)
    if args.part != "seam":
        with tempfile.TemporaryDirectory(prefix="kerolox-faults-") as folder:
            result["process"] = run_process(Path(folder), args.only, violations, progress)
    result |= {"seconds": round(time.monotonic() - began_s), "violations": violations}
    text = json.dumps(result, indent=2) + "\n"
    progress(text)
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(text, encoding="utf-8")
    sys.exit(bool(violations))


def chosen(only: str | None) -> list[Place]:
    """The places of that name, or of a kind of that name."""
    return [place for place in places(*Kind) if only in (None, place.name, place.kind.value)]


def seam(only: str | None, violations: list[str]) -> dict[str, Any]:
    names = {place.name for place in chosen(only)}
    outcomes: list[Outcome] = []
    with ProcessPoolExecutor(WORKERS, mp_context=get_context("spawn")) as pool:
        futures = {pool.submit(run_job, job, names): job for job in jobs()}
        for number, future in enumerate(as_completed(futures), 1):
            found = future.result()
            outcomes += found
            progress(f"{number} of {len(futures)}, {futures[future]}: {len(found)} places")
            for outcome in found:
                for wrong in outcome.wrong:
                    violations.append(f"{outcome.job}: {wrong}")
                    progress(f"VIOLATION: {violations[-1]}")
    return summary(outcomes)


def summary(outcomes: list[Outcome]) -> dict[str, Any]:
    kinds: dict[str, Counter[str]] = {}
    actions: Counter[str] = Counter()
    for outcome in outcomes:
        kind = kinds.setdefault(outcome.place.kind.value, Counter())
        kind["places"] += 1
        kind["reached"] += outcome.hits > 0
        kind["failed_operations"] += outcome.hits
        actions[outcome.place.row.action.value] += outcome.hits > 0
    reached = {(each.place.kind, each.place.operation) for each in outcomes if each.hits}
    never = {(each.place.kind, each.place.operation) for each in outcomes} - reached
    return {
        "places": len(outcomes),
        "reached": sum(each.hits > 0 for each in outcomes),
        "not_reached": sum(not each.hits for each in outcomes),
        "flush": [mode.value for mode in FlushMode],
        "by_kind": {name: dict(count) for name, count in sorted(kinds.items())},
        "reached_by_action": dict(sorted(actions.items())),
        "operations_never_done": sorted(f"{kind.value}-{operation.value}" for kind, operation in never),
        "left_out": LEFT_OUT,
        "violations": sum(bool(each.wrong) for each in outcomes),
    }


def progress(text: str) -> None:
    sys.stderr.write(text + "\n")


if __name__ == "__main__":
    main()
