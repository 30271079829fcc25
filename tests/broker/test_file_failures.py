"""A broker whose files fail: what clients, probes and scrapers see, and that it ends without a restart."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from kerolox.metric_text import MetricsExporter
from kerolox.protocol.codes import ResponseCode
from kerolox.store.errors import Operation
from kerolox.store.failures import Kind
from kerolox.store.state import Obstacle
from kerolox.testing.clock import ManualClock
from kerolox.testing.faults import FaultyFiles
from tests.broker.talk import until
from tests.broker.test_timers import NOW_MS, after_s, timing
from tests.broker.test_unreadable import page

Fault = Callable[[FaultyFiles], None]


@pytest.mark.parametrize(
    "fault",
    [
        lambda disk: disk.fail_syncs(1, path_contains="/timerlog/"),
        lambda disk: disk.fail_syncs(1, path_contains="/timerwheel"),
        lambda disk: disk.fail_syncs(1, path_contains="/timercheck"),
        lambda disk: disk.fail(errno.EIO, Operation.WRITE, path_contains="/timerwheel", count=1),
        lambda disk: disk.fail(errno.EIO, Operation.CREATE, path_contains="/timerwheel", count=2),
        lambda disk: disk.fail(errno.EACCES, Operation.WRITE, path_contains="/timercheck", count=2),
    ],
)
async def test_a_failed_file_of_the_timer_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fault: Fault
) -> None:
    clock, disk = ManualClock(NOW_MS), FaultyFiles()
    monkeypatch.setattr("kerolox.store.message_store.boot_identity", lambda: "first")
    async with timing(tmp_path, clock, files=disk) as talk:
        store = talk.running.broker.store
        fault(disk)
        for number in range(90):  # on two pages of the timer's log
            assert (await talk.send("T", b"%d" % number, after_s(30))).code == 0
        await talk.entered()
        await talk.timers.flush()
        assert store.failing.is_failing(Kind.TIMER, "flush")
        assert store.state.writable
        for number in range(90, 95):
            assert (await talk.send("T", b"%d" % number, after_s(30))).code == 0
        await talk.entered()
        for _ in range(3):
            await talk.timers.flush()
        assert not store.failing.is_failing(Kind.TIMER, "flush")
        await store.flusher.flush_all()
        await store.housekeeper.flush()
        # What the failed flush covered is lost unless it was written again.
        disk.read_only = True
        disk.power_loss()
    monkeypatch.setattr("kerolox.store.message_store.boot_identity", lambda: "second")
    async with timing(tmp_path, clock) as talk:
        assert "timer_damaged" not in caplog.text
        assert "timer_unit_torn" not in caplog.text
        await talk.pass_s(40)
        assert sorted(await talk.bodies(count=95)) == sorted(b"%d" % number for number in range(95))


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
async def test_a_timer_without_descriptors_refuses_sends_until_there_are_some(
    tmp_path: Path, number: int
) -> None:
    clock, disk = ManualClock(NOW_MS), FaultyFiles()
    async with timing(tmp_path, clock, files=disk) as talk:
        store = talk.running.broker.store
        assert (await talk.send("T", b"early", after_s(30))).code == 0
        await talk.entered()
        disk.fail(number, Operation.CREATE, path_contains="/timerwheel")
        await talk.timers.flush()
        assert list(store.state.obstacles) == [Obstacle.NO_DESCRIPTOR]
        answer = await talk.send("T")
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "too many open files" in (answer.remark or "")
        disk.mend()
        await talk.clock.advance(2)
        await until(lambda: store.state.writable)
        assert (await talk.send("T")).code == 0


async def test_a_checkpoint_that_only_time_makes_is_written_again(tmp_path: Path) -> None:
    """It was once tried again a minute later, and sends were refused until then."""
    clock, disk = ManualClock(NOW_MS), FaultyFiles()
    async with timing(tmp_path, clock, files=disk) as talk:
        store = talk.running.broker.store
        await talk.send("T", b"far", after_s(1000))
        await talk.entered()
        await talk.timers.flush()
        disk.fail(errno.ENOSPC, Operation.WRITE, path_contains="/timercheck")
        for _ in range(70):
            await clock.advance(1)
            await talk.timers.flush()
        assert list(store.state.obstacles) == [Obstacle.DISK_FULL]
        disk.mend()
        await talk.timers.flush()
        assert not store.failing.current
        assert store.state.writable


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("is_late", [False, True])
async def test_a_timer_whose_log_fails_is_shown_and_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, number: int, is_late: bool
) -> None:
    """``is_late``: what could not be entered is due before it can be."""
    clock, disk = ManualClock(NOW_MS), FaultyFiles()
    async with timing(tmp_path, clock, files=disk) as talk:
        store = talk.running.broker.store
        disk.fail(number, Operation.WRITE, path_contains="/timerlog/")
        assert (await talk.send("T", b"hello", after_s(5))).code == 0
        await until(lambda: store.failing.is_failing(Kind.TIMER, "enter"))
        for _ in range(3):
            await clock.advance(1)
        assert store.failing.is_failing(Kind.TIMER, "enter")
        assert store.state.writable is (number == errno.EIO)
        assert caplog.text.count("store_failing" if number == errno.EIO else "store_not_writable") == 1
        assert "timer_waits" not in caplog.text
        if not is_late:
            disk.mend()
        for _ in range(10):
            await clock.advance(1)
        await until(lambda: not store.failing.current and store.state.writable)
        assert await talk.bodies(count=1) == [b"hello"]


async def test_probes_and_metrics_show_what_fails_and_what_refuses(tmp_path: Path) -> None:
    clock, disk = ManualClock(NOW_MS), FaultyFiles()
    options = {"metrics_exporter": MetricsExporter.PROM, "metrics_port": 0, "commit_log_file_bytes": 1 << 16}
    async with timing(tmp_path, clock, files=disk, **options) as talk:
        store = talk.running.broker.store
        await until(lambda: store.segments.next_ready)
        disk.fail(errno.EIO, Operation.CREATE, path_contains="/commitlog/")
        disk.fail(errno.EIO, Operation.WRITE, path_contains="/consumequeue/")
        assert (await talk.send("T")).code == 0
        await store.housekeeper.flush()
        status, body = await page(talk.running, "healthz")
        assert status == 200  # sends are taken
        assert "failing: consume queues cannot be written: " in body
        body = (await page(talk.running, "metrics"))[1]
        assert _value(body, "kerolox_store_failing", 'file="queue"') == 1
        assert _value(body, "kerolox_store_failures_total", 'error="EIO"', 'operation="write"') >= 1
        while (answer := await talk.send("T", b"x" * 10_000)).code == 0:
            pass
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        status, body = await page(talk.running, "healthz")
        assert "no next file: the next file of the log cannot be created: cannot create" in body
        body = (await page(talk.running, "metrics"))[1]
        assert _value(body, "kerolox_store_obstacle", 'obstacle="no next file"') == 1
        disk.mend()
        for _ in range(3):
            await clock.advance(1.1)
        await until(lambda: store.state.writable)
        await store.housekeeper.flush()
        assert (await page(talk.running, "healthz"))[1] == "ok\n"
        body = (await page(talk.running, "metrics"))[1]
        assert "kerolox_store_failing{" not in body
        assert _value(body, "kerolox_store_obstacle", 'obstacle="no next file"') == 0


def _value(text: str, name: str, *labels: str) -> float:
    (line,) = [
        line
        for line in text.splitlines()
        if line.startswith(name + "{") and all(label in line for label in labels)
    ]
    return float(line.rsplit(" ", 1)[1])
