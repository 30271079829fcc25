"""A timer store changes hands in mid-flight: every message that waits comes at its time, whoever wrote it."""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .conftest import Factory
from .driver import JavaDriver
from .ours import OurBroker
from .processes import JavaBroker, JavaNameServer

Unique = Callable[[str], str]
COUNT = 80
STEP_MS = 500
TIMER_FILE = 52 * 30 + 16  # a few files
SETTINGS = {
    "mappedFileSizeTimerLog": TIMER_FILE,
    # Files of the timer log are taken away only with the messages they are of.
    "timerFlushIntervalMs": 200,
}


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Turns:
    """One directory and one address, Apache's broker and ours in turns."""

    def __init__(self, java: Factory, namesrv: str, home: Path, name: str) -> None:
        self.theirs: JavaBroker = java.broker(namesrv, name=name, properties=SETTINGS, start=False)
        self.ours = OurBroker(
            home,
            namesrv,
            name=name,
            properties={
                **SETTINGS,
                "storePathRootDir": self.theirs.store,
                "listenPort": self.theirs.port,
            },
        )
        self.ours.port = self.theirs.port
        self.ours.ready = re.compile(rf"ready on 127\.0\.0\.1:{self.theirs.port}\b")

    def finish(self) -> None:
        self.ours.finish()
        self.theirs.finish()


def change(leaving: Any, coming: Any, *, clean: bool) -> tuple[int, int]:
    """When nobody served."""
    gone_ms = now_ms()
    if clean:
        leaving.stop()
    else:
        leaving.kill()
    coming.start()
    return gone_ms, now_ms()


@pytest.mark.parametrize("clean", [True, False], ids=["stop", "kill"])
@pytest.mark.parametrize("first", ["apache", "ours"])
def test_what_waits_comes_at_its_time(
    java: Factory,
    java_driver: JavaDriver,
    java_nameserver: JavaNameServer,
    tmp_path: Path,
    unique: Unique,
    first: str,
    clean: bool,
) -> None:
    namesrv = java_nameserver.address
    turns = Turns(java, namesrv, tmp_path / "ours", unique("timed"))
    if turns.theirs.jars.is_4x:
        pytest.skip("4.x has delay levels only")
    one, other = (turns.theirs, turns.ours) if first == "apache" else (turns.ours, turns.theirs)
    call = java_driver.call
    topic = unique("topic")
    try:
        one.start()
        java_driver.create_topic(namesrv, one.address, topic, 1)
        producer = call("producer.start", group=unique("pid"), namesrv=namesrv)
        due: dict[str, int] = {}
        for number in range(COUNT):
            delay_ms = 2000 + number * STEP_MS
            due[str(number)] = now_ms() + delay_ms
            message = {"topic": topic, "text": str(number), "options": {"delayTimeMs": delay_ms}}
            assert call("producer.send", handle=producer, message=message)["status"] == "SEND_OK"
        consumer = call(
            "push.start", group=unique("group"), namesrv=namesrv, body=True,
            subscriptions=[{"topic": topic, "expression": "*"}],
            options={"consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET"},
        )  # fmt: skip
        wait(call, consumer, 5)
        gaps = [change(one, other, clean=clean)]
        wait(call, consumer, COUNT // 2)
        gaps.append(change(other, one, clean=clean))
        wait(call, consumer, COUNT)
        time.sleep(1.5)
        got = call("push.drain", handle=consumer)
        for handle in (consumer, producer):
            call("shutdown", handle=handle)
    finally:
        turns.finish()
    first_of: dict[str, int] = {}
    for record in got:
        name = base64.b64decode(record["body"]).decode()
        first_of[name] = min(first_of.get(name, 1 << 62), record["storeTimestamp"])
    assert first_of.keys() == due.keys()  # none was lost
    if clean:
        assert len(got) == COUNT, "messages came twice"
    for name, stored_ms in first_of.items():
        late_ms = stored_ms - due[name]
        # What fell due while nobody served comes as soon as somebody does.
        waited_ms = max((end - due[name] for start, end in gaps if start - 2500 < due[name] < end), default=0)
        assert -20 <= late_ms <= 2500 + waited_ms, (name, late_ms, gaps)


def wait(call: Callable[..., Any], consumer: str, count: int) -> None:
    seen = call("push.waitCount", handle=consumer, count=count, distinct=True, timeoutMs=60_000, timeout=80.0)
    assert seen["reached"], seen
