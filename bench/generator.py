"""Runs the load generator: the one in C where there is a compiler, else its twin in Python."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from bench.results import ROOT

HERE = Path(__file__).parent
OVERRUN_MAX = 1.1  # the generator looks at the clock every 0.1 s at least


class Disturbed(Exception):
    """The generator itself was kept from running: the round says nothing about the server."""


@dataclass(frozen=True)
class Run:
    """What one run of the load saw."""

    answers: int
    refusals: int
    wall_s: float
    server_cpu_s: float
    other_cpu_s: float
    load_cpu_s: float
    p50_us: float
    p99_us: float

    @property
    def rate(self) -> float:
        return self.answers / self.wall_s

    @property
    def server_us(self) -> float:
        """CPU microseconds of the server per answer."""
        return self.server_cpu_s * 1e6 / self.answers

    @property
    def load_busy(self) -> float:
        """How much of its core the generator used: near 1 it is the bottleneck, not the server."""
        return self.load_cpu_s / self.wall_s


class Generator:
    """``with Generator(core) as load: load.run(...)``"""

    def __init__(self, core: int, *, python: bool = False) -> None:
        self._core = core
        self._compiler = None if python else shutil.which("cc") or shutil.which("gcc")
        self._folder = tempfile.TemporaryDirectory(prefix="kerolox-bench-")

    @property
    def name(self) -> str:
        return "C (load.c)" if len(self._command) == 1 else "Python (load.py)"

    @cached_property
    def _command(self) -> list[str]:
        if self._compiler is not None:
            binary = str(Path(self._folder.name) / "load")
            built = subprocess.run([self._compiler, "-O2", "-o", binary, str(HERE / "load.c")])
            if built.returncode == 0:
                return [binary]
        return [sys.executable, "-m", "bench.load"]

    def run(
        self,
        frames: bytes,
        port: int,
        server: int,
        connections: int,
        depth: int,
        seconds: float,
        warm_s: float,
        other: int | None = None,
        refusals_max: int = 0,
    ) -> Run:
        """One round; the CPU time of another process is counted, too. Raises Disturbed when it is to be
        repeated."""
        arguments = [port, connections, depth, warm_s, seconds, server, *([] if other is None else [other])]
        done = subprocess.run(
            [*self._command, *map(str, arguments)],
            input=frames,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            check=True,
            timeout=60 + warm_s + seconds,
            preexec_fn=lambda: os.sched_setaffinity(0, {self._core}),
        )
        run = Run(**json.loads(done.stdout))
        if run.refusals > refusals_max:
            raise RuntimeError(f"{run.refusals} of {run.answers} requests were refused")
        if run.wall_s > seconds * OVERRUN_MAX:
            raise Disturbed(f"a round of {seconds:g} s took {run.wall_s:.1f} s")
        if not run.answers:
            raise RuntimeError(f"no answer in {run.wall_s:.1f} s")
        return run

    def __enter__(self) -> Generator:
        return self

    def __exit__(self, *exc: object) -> None:
        self._folder.cleanup()
