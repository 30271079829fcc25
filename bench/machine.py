"""The machine a benchmark ran on, and what a process used of it.

CPU time is what counts: on a shared machine the clock on the wall measures the neighbours as well.
"""

from __future__ import annotations

import datetime
import os
import platform
import re
import socket
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

PACKAGES = ("kerolox", "msgspec", "uvloop", "lz4", "zstandard")
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


# --- what it is -----------------------------------------------------------------------------------


def describe(java: str | Path | None = None) -> dict[str, str]:
    """What every result is printed and stored with. ``java`` is the runtime of a peer, if one ran."""
    from kerolox.net.loop import LOOP_NAME

    facts = {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": _cpu_model(),
        "cores": f"{len(os.sched_getaffinity(0))} usable of {os.cpu_count()}",
        "memory": f"{_memory_kib() / 1024 / 1024:.1f} GiB",
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "loop": LOOP_NAME,
        "packages": ", ".join(f"{name} {version}" for name, version in _versions()),
        "load average": f"{os.getloadavg()[0]:.1f} over the minute before",
    }
    if java is not None:
        facts["java"] = java_version(java)
    return facts


def show(facts: dict[str, str]) -> None:
    for name, value in facts.items():
        print(f"{name:>13}: {value}")
    print(flush=True)


def java_version(java: str | Path) -> str:
    """What ``java -version`` says, in one line."""
    said = subprocess.run([str(java), "-version"], capture_output=True, text=True, timeout=30).stderr
    return "; ".join(line.strip() for line in said.splitlines())


def _cpu_model() -> str:
    match = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    return match.group(1) if match else platform.processor() or "unknown"


def _memory_kib() -> int:
    match = re.search(r"MemTotal:\s*(\d+)", Path("/proc/meminfo").read_text())
    return int(match.group(1)) if match else 0


def _versions() -> Iterable[tuple[str, str]]:
    for name in PACKAGES:
        try:
            yield name, metadata.version(name)
        except metadata.PackageNotFoundError:
            continue


# --- cores ----------------------------------------------------------------------------------------


def cores() -> tuple[int, int]:
    """One core for the server and one for the load; the same one where there is no second."""
    usable = sorted(os.sched_getaffinity(0))
    return usable[0], usable[-1]


def pin(pid: int, core: int) -> None:
    """Every thread of a process to one core; threads it starts later inherit that."""
    for thread in _threads(pid):
        try:
            os.sched_setaffinity(thread, {core})
        except ProcessLookupError:
            continue


def _threads(pid: int) -> list[int]:
    return [int(entry) for entry in os.listdir(f"/proc/{pid}/task")]


# --- CPU time -------------------------------------------------------------------------------------


def cpu_s(pid: int, *, ended: bool = False) -> float:
    """CPU seconds of a process, all its threads (ended ones too) and its living children.

    ``ended``: its ended children as well, if their parents waited for them.
    """
    found = 0.0
    for each in family(pid):
        try:
            found += _own_cpu_s(each) + (_ended_children_cpu_s(each) if ended else 0.0)
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended just now; its parent has its time
    return found


def family(pid: int) -> list[int]:
    """A process and its living descendants."""
    found = [pid]
    for thread in _threads(pid):
        try:
            children = Path(f"/proc/{pid}/task/{thread}/children").read_text().split()
        except OSError:
            continue
        for child in children:
            try:
                found += family(int(child))
            except OSError:
                continue
    return found


def _own_cpu_s(pid: int) -> float:
    try:
        # The kernel's clock of another process: nanoseconds, where /proc counts in ticks.
        return time.clock_gettime_ns((~pid << 3) | 2) / 1e9
    except OSError:
        fields = _stat(pid)
        return (int(fields[11]) + int(fields[12])) / TICKS_A_SECOND


def _ended_children_cpu_s(pid: int) -> float:
    fields = _stat(pid)
    return (int(fields[13]) + int(fields[14])) / TICKS_A_SECOND


def _stat(pid: int) -> list[str]:
    """From the state on: what comes before it is a name that may have blanks in it."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


# --- memory ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Memory:
    """In MiB. ``pss`` divides shared pages among those who share them."""

    rss: float
    pss: float
    peak: float


def memory(pid: int) -> Memory:
    """What a process and its children hold now."""
    rss = pss = peak = 0
    for each in family(pid):
        rolled = Path(f"/proc/{each}/smaps_rollup").read_text()
        rss += _kib(rolled, "Rss")
        pss += _kib(rolled, "Pss")
        peak += _kib(Path(f"/proc/{each}/status").read_text(), "VmHWM")
    return Memory(rss / 1024, pss / 1024, peak / 1024)


def _kib(text: str, name: str) -> int:
    match = re.search(rf"^{name}:\s*(\d+) kB", text, re.MULTILINE)
    return int(match.group(1)) if match else 0


# --- waiting --------------------------------------------------------------------------------------


def connect_when_open(
    port: int, process: subprocess.Popen[bytes] | None = None, timeout_s: float = 60.0
) -> socket.socket:
    """A connection to a port of this machine, as soon as somebody listens there."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), 5.0)
        except ConnectionRefusedError:
            pass
        if process is not None and process.poll() is not None:
            raise RuntimeError(f"the server ended with {process.returncode} before it listened on {port}")
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"nobody listens on port {port} after {timeout_s:g} s")
        time.sleep(0.002)
