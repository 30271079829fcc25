"""Runs commands side by side: ``python -m tests.side_by_side suite='pytest ...' peers='pytest ...'``.

The output of the first command is shown as it comes, that of the others when they have ended. Ends with a
line for each command, and with an error if one of them failed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from typing import IO


@dataclass
class Part:
    """One command."""

    name: str
    command: str
    process: subprocess.Popen[bytes]
    output: IO[bytes] | None  # None: shown as it comes
    began_s: float = field(default_factory=time.monotonic)
    took_s: float = 0.0
    cpu_s: float = 0.0
    failed: bool = False

    def wait(self) -> None:
        _, status, usage = os.wait4(self.process.pid, 0)
        self.process.returncode = os.waitstatus_to_exitcode(status)
        self.took_s = time.monotonic() - self.began_s
        self.cpu_s = usage.ru_utime + usage.ru_stime
        self.failed = self.process.returncode != 0


def start(word: str, *, is_shown: bool) -> Part:
    name, equals, command = word.partition("=")
    if not (name and equals and command):
        raise SystemExit(f"{word!r}: expected NAME=COMMAND")
    output = None if is_shown else tempfile.TemporaryFile()  # noqa: SIM115
    process = subprocess.Popen(command, shell=True, stdout=output, stderr=output and subprocess.STDOUT)
    return Part(name, command, process, output)


def show(part: Part) -> None:
    """Print the output of a command that has ended."""
    if part.output is not None:
        part.output.seek(0)
        sys.stdout.write(f"\n--- {part.name}: {part.command}\n")
        sys.stdout.flush()
        for piece in iter(lambda: part.output.read(1 << 16), b""):  # type: ignore[union-attr]
            sys.stdout.buffer.write(piece)
        sys.stdout.flush()


def main(words: list[str]) -> int:
    parts = [start(word, is_shown=number == 0) for number, word in enumerate(words)]
    threads = [threading.Thread(target=part.wait) for part in parts]
    for thread in threads:
        thread.start()
    for thread, part in zip(threads, parts, strict=True):
        thread.join()
        show(part)
    for part in parts:
        outcome = "FAILED" if part.failed else "passed"
        sys.stdout.write(f"{part.name}: {outcome} in {part.took_s:.0f} s, {part.cpu_s:.0f} s of CPU\n")
    return int(any(part.failed for part in parts))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
