"""Starts after a crash, each in a process of its own: that process dies without closing the store.

``python -m bench.store_recovery build DIRECTORY BODY_BYTES MIB`` makes a store and dies;
``python -m bench.store_recovery start DIRECTORY`` recovers one, says in JSON what that took, and dies.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench.machine import memory
from bench.store_load import Load, fill, options
from kerolox.store.message_store import MessageStore

# What is lost for each kind of start.
KINDS: dict[str, tuple[str, ...]] = {
    "with marks": (),
    "marks removed: all read, nothing missing": ("kerolox.marks", "checkpoint"),
    "queues and index removed: all read and rebuilt": ("kerolox.marks", "consumequeue", "index"),
}
TAIL_MIB = 16  # appended behind the last marks: some of a second of full load


def build(root: Path, body_bytes: int, mib: int) -> None:
    async def run() -> None:
        store = MessageStore(options(root))
        await store.open()
        load = Load(body_bytes)
        fill(store, load, (mib - TAIL_MIB) << 20)
        await store.flusher.flush_all()
        await store.housekeeper.flush()
        fill(store, load, TAIL_MIB << 20)
        os._exit(0)

    asyncio.run(run())


def start(root: Path) -> None:
    async def run() -> None:
        store = MessageStore(options(root))
        wall, cpu = time.perf_counter(), time.process_time()
        found = await store.open()
        said = {
            "seconds": time.perf_counter() - wall,
            "cpu_s": time.process_time() - cpu,
            "bytes": found.bytes_read,
            "records": found.records,
            "log_bytes": found.end,
            "rss_mib": memory(os.getpid()).peak,
        }
        print(json.dumps(said), flush=True)
        os._exit(0)

    asyncio.run(run())


def measure(folder: Path, body_bytes: int, mib: int) -> dict[str, dict[str, Any]]:
    """Kind of start → what it said."""
    root = folder / f"recovery-{body_bytes}"
    _call("build", str(root), str(body_bytes), str(mib))
    found = {}
    for kind, lost in KINDS.items():
        for name in lost:
            path = root / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        try:
            found[kind] = json.loads(_call("start", str(root)))
        except subprocess.CalledProcessError as error:
            # Said in the table: the other figures are worth having all the same.
            found[kind] = {"failed": (error.stderr or "").strip().splitlines()[-1]}
    shutil.rmtree(root)
    return found


def _call(*arguments: str) -> str:
    command = [sys.executable, "-m", "bench.store_recovery", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout


def main() -> None:
    what, root, *more = sys.argv[1:]
    if what == "build":
        build(Path(root), *map(int, more))
    else:
        start(Path(root))


if __name__ == "__main__":
    main()
