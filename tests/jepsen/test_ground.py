"""Networks, disks and clocks that can be broken are, and mend."""

from __future__ import annotations

import asyncio
import errno
import socket
import threading
import time
from pathlib import Path

import pytest

from .disks import Disks
from .shifted_clock import ClockPage, ShiftedClock
from .wires import CLIENTS, Wires, between


def test_a_cut_has_one_direction(wires: Wires) -> None:
    sockets = {}
    for name in ("b1", "b2", CLIENTS):
        with wires.places[name].inside():
            sockets[name] = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sockets[name].bind((wires.ips[name], 7))

    def arrives(sender: str, receiver: str) -> bool:
        sockets[receiver].settimeout(0.2)
        sockets[sender].sendto(b"x", (wires.ips[receiver], 7))
        try:
            return sockets[receiver].recv(10) == b"x"
        except TimeoutError:
            return False

    try:
        assert arrives("b1", "b2")
        assert arrives("b2", "b1")
        wires.cut([("b1", "b2")])
        assert not arrives("b1", "b2")
        assert arrives("b2", "b1")
        assert arrives("b1", CLIENTS)
        wires.cut(between(["b1"], ["b2", CLIENTS]))
        assert not arrives("b2", "b1")
        assert not arrives(CLIENTS, "b1")
        assert arrives(CLIENTS, "b2")
        wires.mend([("b1", "b2"), ("b2", "b1")])
        assert arrives("b1", "b2")
        assert not arrives("b1", CLIENTS)
        wires.mend()
        assert arrives("b1", CLIENTS)
        assert arrives(CLIENTS, "b1")
        assert not wires.cuts
    finally:
        for one in sockets.values():
            one.close()


def test_a_disk_is_filled_and_nobody_else_sees_it(wires: Wires, tmp_path: Path) -> None:
    mounted, seen = threading.Event(), []
    other = threading.Thread(target=lambda: mounted.wait(30) and seen.append((tmp_path / "b1").is_mount()))
    other.start()
    with Disks(tmp_path) as disks:
        disk = disks.add("b1", 1 << 20)
        assert disk.is_mount()
        mounted.set()
        other.join()
        assert seen == [False]
        (disk / "kept").write_bytes(b"kept")
        disks.fill("b1", leave_bytes=8192)
        (disk / "small").write_bytes(bytes(8192))
        with pytest.raises(OSError, match="No space") as full:
            (disk / "more").write_bytes(bytes(4096))
        assert full.value.errno == errno.ENOSPC
        disks.make_room("b1")
        (disk / "more").write_bytes(bytes(4096))
        assert disks.add("b1", 1 << 20).exists()  # another one
        assert not list(disk.iterdir())
    assert not disk.is_mount()


def test_a_clock_is_moved_from_outside(tmp_path: Path) -> None:
    page = ClockPage(tmp_path / "clock")
    clock = ShiftedClock(str(page.path))
    page.wall(-5_000_000)
    assert abs(clock.wall_ms() + 5_000_000 - time.time() * 1000) < 1000
    before_s = clock.monotonic_s()
    page.leap(3600)
    assert 3600 <= clock.monotonic_s() - before_s < 3660
    page.rate(1000.0)
    before_s = clock.monotonic_s()
    time.sleep(0.02)
    assert clock.monotonic_s() - before_s >= 20
    page.rate(0.001)
    before_s = clock.monotonic_s()
    time.sleep(0.02)
    assert 0 <= clock.monotonic_s() - before_s < 0.01
    page.close()


async def test_timers_follow_the_rate(tmp_path: Path) -> None:
    page = ClockPage(tmp_path / "clock")
    clock = ShiftedClock(str(page.path))
    page.rate(1000.0)
    began_s = time.monotonic()
    await clock.sleep(20)
    assert 0.02 <= time.monotonic() - began_s < 5
    page.close()


async def test_timers_of_a_slow_clock_end_when_it_is_right_again(tmp_path: Path) -> None:
    page = ClockPage(tmp_path / "clock")
    clock = ShiftedClock(str(page.path))
    page.rate(0.001)
    called = asyncio.Event()
    clock.call_later(0.1, called.set)
    cancelled = clock.call_later(0.1, pytest.fail)
    sleeping = asyncio.create_task(clock.sleep(0.1))
    await asyncio.sleep(0.2)
    assert not called.is_set()
    assert not sleeping.done()
    cancelled.cancel()
    page.rate(1.0)
    async with asyncio.timeout(10):  # not 100 s
        await called.wait()
        await sleeping
    page.close()
