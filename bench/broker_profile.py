"""Where the time of our broker goes, under the loads of the broker benchmark."""

from __future__ import annotations

import collections
import pstats
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from bench.broker_peers import OURS, BenchBroker, stop

if TYPE_CHECKING:
    from bench.broker import Bench, Row

SHOWN = 28


def show(rows: Iterable[Row], bench: Bench, folder: Path) -> None:
    """One profile for each row: sampled by py-spy where it is installed, else traced by cProfile."""
    sampler = shutil.which("py-spy") or shutil.which(str(Path(sys.executable).parent / "py-spy"))
    for number, row in enumerate(rows):
        out = folder / f"profile-{number}"
        broker = BenchBroker(OURS, bench.jars, {"flushDiskType": row.flush}, profile=None if sampler else out)
        recording = None
        try:
            if row.kind == "consume":
                bench.backlog(row.size, broker)
            if sampler:
                seconds = str(int(bench.arguments.seconds + bench.arguments.settle))
                words = ["record", "-p", str(broker.pid), "-d", seconds, "-f", "raw", "-o", str(out)]
                recording = subprocess.Popen([sampler, *words], stdout=subprocess.DEVNULL)
            run = bench.run(row, broker)
            stop(broker.process)
            print(f"\n== {row.name}, {row.flush}: {run.rate:,.0f}/s, {run.cpu_us:.1f} CPU µs each")
            if recording is not None:
                recording.wait(60)
                print_samples(out)
            else:
                print(f"(cProfile slows all calls down; counts are exact, over {run.messages:,} and more)")
                stats = pstats.Stats(str(out))
                stats.strip_dirs().sort_stats("tottime").print_stats(SHOWN)
        finally:
            broker.close()


def print_samples(path: Path) -> None:
    own: collections.Counter[str] = collections.Counter()
    total = 0
    for line in path.read_text().splitlines():
        stack, _, count = line.rpartition(" ")
        own[stack.rpartition(";")[2]] += int(count)
        total += int(count)
    for name, count in own.most_common(SHOWN):
        print(f"{count / total:6.1%}  {name}")
