"""Process of the streaming queries of ``kerolox demo`` (:mod:`kerolox.demo.streams`)."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kerolox.errors import KeroloxError

STOP_S = 30.0


def is_installed() -> bool:
    return all(find_spec(package) is not None for package in ("pyspark", "pyarrow", "numpy"))


class DemoQueries:
    """Process that runs the streaming queries."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process = process
        self._log = log

    async def started(self) -> dict[str, Any]:
        return await self._next("started")

    async def done(self, tick: Callable[[str, int], object]) -> dict[str, Any]:
        while True:
            told = await self._next("progress", "done")
            if told["event"] == "done":
                return told
            tick(told["what"], told["read"])

    async def _next(self, *events: str) -> dict[str, Any]:
        assert self._process.stdout is not None
        why = ""
        while line := await self._process.stdout.readline():
            told: dict[str, Any] = json.loads(line)
            if told["event"] in events:
                return told
            why = told.get("why", why)
        await self._process.wait()
        if not why:
            lines = self._log.read_text(errors="replace").strip().splitlines()
            why = next((line for line in reversed(lines) if "Error" in line), lines[-1] if lines else "")
        raise KeroloxError(
            f"the streaming queries exited early (exit code {self._process.returncode}): {why[:500]} ... "
            "Skip them with: kerolox demo --no-spark. With --data DIR, their full output is in DIR/spark.log"
        )


@asynccontextmanager
async def queries(*arguments: str, log: Path) -> AsyncIterator[DemoQueries]:
    """Start the streaming queries. Their Python and Java processes are stopped at the exit."""
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "kerolox.demo.streams", *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            start_new_session=True,  # Ctrl-C reaches only this process, which then stops the queries
        )  # fmt: skip
    try:
        yield DemoQueries(process, log)
    finally:
        await asyncio.shield(_end(process))


async def _end(process: asyncio.subprocess.Process) -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        async with asyncio.timeout(STOP_S):
            await process.wait()
    except TimeoutError:
        process.kill()  # Java then exits automatically
        await process.wait()
