"""The machine a benchmark ran on, and what a process used of it.

CPU time is what counts: on a shared machine the clock on the wall measures the neighbours as well.
"""

from __future__ import annotations

import datetime
import os
import platform
import re
import signal
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
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


def _ticks() -> tuple[int, int]:
    """Ticks that the processors were wanted for, and those of them that went to other guests of the host."""
    words = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    user, nice, system, _, _, irq, soft, stolen = map(int, words)
    return user + nice + system + irq + soft + stolen, stolen


_BEGAN = _ticks()


def stolen() -> str:
    """What other guests of the host took since this began: with much of it, rates are low and differ."""
    wanted, taken = (now - then for now, then in zip(_ticks(), _BEGAN, strict=True))
    return f"{taken / max(wanted, 1) * 100:.0f}% of the CPU time that was wanted while this ran"


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


@contextmanager
def held_still(pids: Iterable[int]) -> Iterator[None]:
    """These processes do not run meanwhile: a JVM that has nothing to do any more goes on compiling and
    collecting, on the very core that is measured."""
    held = list(pids)
    try:
        for pid in held:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in held:
            os.kill(pid, signal.SIGCONT)


# --- CPU time -------------------------------------------------------------------------------------


def cpu_s(pid: int) -> float:
    """CPU seconds of a process, all its threads (ended ones too) and its living children."""
    return sum(_own_cpu_s(each) for each in family(pid))


class FamilyCpu:
    """CPU seconds of a process and its children, those that have ended too.

    It looks every so often by itself: what a process has used is told to its parent at most, and only if
    that one waits for it. So what an ended one has used since the last look is not in it.
    """

    def __init__(self, pid: int, every_s: float = 0.25, role: Callable[[str], str] = lambda _: "") -> None:
        """``role`` tells by a command line which part a process has."""
        self._pid = pid
        self._role = role
        self._roles: dict[int, str] = {}
        self._seen: dict[int, float] = {}
        self._ended_s: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._every_s = every_s
        self.cost_s = 0.0  # CPU time of the looking itself
        threading.Thread(target=self._look_often, daemon=True).start()

    def close(self) -> None:
        self._closed.set()

    def now_s(self) -> float:
        return sum(self.by_role().values())

    def by_role(self) -> dict[str, float]:
        with self._lock:
            self._look()
            found = Counter(self._ended_s)
            for pid, used_s in self._seen.items():
                found[self._roles.get(pid, "")] += used_s
            return dict(found)

    def _look_often(self) -> None:
        while not self._closed.wait(self._every_s):
            with self._lock:
                began_s = time.thread_time()
                self._look()
                self.cost_s += time.thread_time() - began_s

    def _look(self) -> None:
        now: dict[int, float] = {}
        try:
            for each in family(self._pid):
                now[each] = _own_cpu_s(each)
                if each not in self._roles:
                    self._roles[each] = self._role(_command_line(each))
        except OSError:
            pass  # one ended just now; the others are seen the next time
        for pid, used_s in self._seen.items():
            if (pid not in now and not Path(f"/proc/{pid}").exists()) or now.get(pid, used_s) < used_s:
                self._ended_s[self._roles.pop(pid, "")] += used_s
            else:
                now.setdefault(pid, used_s)
        self._seen = now


def _command_line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")


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
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_A_SECOND


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
