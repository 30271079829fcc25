"""Why the log is written by ``pwrite`` and not through a map: both, on the same kind of file, in turns.

    python -m bench.append_way [--directory DIR]

CPU µs a record and the longest single write, for different numbers of records a write. Blocks are
allocated in both cases, as the store does. The smallest of three rounds' CPU, the longest of their stalls.
"""

from __future__ import annotations

import argparse
import mmap
import os
import tempfile
import time

SIZE = 128 << 20


def one_round(directory: str, way: str, record: int, batch: int) -> tuple[float, float]:
    """CPU µs a record, and the longest write in ms."""
    with tempfile.TemporaryFile(dir=directory) as file:
        fd = file.fileno()
        os.posix_fallocate(fd, 0, SIZE)
        data = os.urandom(record * batch)
        count, step, longest = SIZE // len(data), len(data), 0.0
        mapped = mmap.mmap(fd, SIZE) if way == "map" else None
        began = time.process_time()
        for number in range(count):
            at = number * step
            before = time.perf_counter()
            if mapped is not None:
                mapped[at : at + step] = data
            else:
                os.pwrite(fd, data, at)
            longest = max(longest, time.perf_counter() - before)
        spent = time.process_time() - began
        if mapped is not None:
            mapped.close()
    return spent / count / batch * 1e6, longest * 1e3


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--directory", default=".")
    directory = arguments.parse_args().directory
    print("| record, records a write | pwrite µs | map µs | pwrite longest ms | map longest ms |")
    print("|---|--:|--:|--:|--:|")
    for record, batch in ((256, 1), (256, 16), (256, 128), (1200, 1), (1200, 32)):
        found: dict[str, list[tuple[float, float]]] = {"pwrite": [], "map": []}
        for _ in range(3):
            for way, rounds in found.items():
                rounds.append(one_round(directory, way, record, batch))
        cpu = {way: min(c for c, _ in rounds) for way, rounds in found.items()}
        stall = {way: max(s for _, s in rounds) for way, rounds in found.items()}
        print(
            f"| {record} B, {batch} | {cpu['pwrite']:.2f} | {cpu['map']:.2f} | {stall['pwrite']:.1f} "
            f"| {stall['map']:.1f} |"
        )


if __name__ == "__main__":
    main()
