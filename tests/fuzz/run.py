"""``make fuzz``: coverage-guided fuzzing of every decoder, each in a process of its own, with a result file.

python -m tests.fuzz.run --seconds 60 --result docs/results/fuzz.json
python -m tests.fuzz.run --target records --seconds 600      one target, longer
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def fuzz_one(name: str, seconds: int, corpus: Path) -> None:
    import atheris

    # Only what is imported here for the first time is instrumented, so nothing above imports kerolox.
    with atheris.instrument_imports(include=["kerolox"], enable_loader_override=False):
        from . import targets as instrumented
    atheris.Setup(
        [
            sys.argv[0],
            str(corpus),
            f"-max_total_time={seconds}",
            "-max_len=4096",
            "-print_final_stats=1",
            f"-artifact_prefix={corpus}/",
        ],
        instrumented.TARGETS[name],
    )
    atheris.Fuzz()


def seed_corpus(name: str, folder: Path) -> None:
    """Start from real bytes: the golden conversations, cut to what the target reads."""
    golden = Path(__file__).parent.parent / "data" / "golden"
    number = 0
    for path in sorted(golden.rglob("*")):
        if path.is_file() and path.suffix in (".bin", ".jsonl") and path.stat().st_size < 200_000:
            for line in path.read_bytes().splitlines()[:40]:
                (folder / f"{name}-{number}").write_bytes(line[:4096])
                number += 1


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--seconds", type=int, default=60, help="for each target")
    arguments.add_argument("--target", help="one of those in targets.py; all without it")
    arguments.add_argument("--result", type=Path)
    arguments.add_argument("--one", help=argparse.SUPPRESS)
    arguments.add_argument("--corpus", type=Path, help=argparse.SUPPRESS)
    chosen = arguments.parse_args()
    if chosen.one:
        fuzz_one(chosen.one, chosen.seconds, chosen.corpus)
        return 0
    from .targets import TARGETS

    rows = []
    for name in [chosen.target] if chosen.target else TARGETS:
        with tempfile.TemporaryDirectory() as folder:
            seed_corpus(name, Path(folder))
            began = time.monotonic()
            done = subprocess.run(
                [sys.executable, "-m", "tests.fuzz.run", "--one", name, "--seconds", str(chosen.seconds),
                 "--corpus", folder],
                stderr=subprocess.PIPE, text=True, check=False,
            )  # fmt: skip
        runs = re.search(r"stat::number_of_executed_units:\s*(\d+)", done.stderr)
        coverage = re.findall(r"cov: (\d+)", done.stderr)
        row = {
            "target": name,
            "ok": done.returncode == 0,
            "inputs": int(runs.group(1)) if runs else 0,
            "coverage": int(coverage[-1]) if coverage else 0,
            "seconds": round(time.monotonic() - began, 1),
        }
        rows.append(row)
        sys.stdout.write(f"{name:16} {'ok' if row['ok'] else 'FAILED'} {row['inputs']:>9} inputs\n")
        sys.stdout.flush()
        if not row["ok"]:
            sys.stdout.write(done.stderr[-6000:])
    if chosen.result:
        machine = {"python": platform.python_version(), "system": platform.platform()}
        date = time.strftime("%Y-%m-%d")
        chosen.result.write_text(
            json.dumps({"date": date, "machine": machine, "targets": rows}, indent=1) + "\n"
        )
    return 0 if all(row["ok"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
