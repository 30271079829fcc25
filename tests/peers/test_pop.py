"""A store changes hands while messages are out: what was acknowledged stays so, what was not comes again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kerolox.net.dialer import Dialer
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import Command
from kerolox.protocol.header import Header
from kerolox.protocol.headers.pop import AckRequest, ChangeInvisibleTimeRequest, PopRequest
from tests.broker.pop.kit import Popped, popped

from .conftest import Factory
from .driver import JavaDriver
from .processes import JavaNameServer
from .test_timers import Turns, change

Unique = Callable[[str], str]
INVISIBLE_MS = 30_000
WAIT_S = 120.0


class Member:
    """A consumer that pops, at whatever broker has the address now."""

    def __init__(self, address: str, broker: str, topic: str, group: str) -> None:
        self.address, self.broker, self.topic, self.group = address, broker, topic, group

    def _call(self, code: RequestCode, header: Header) -> Command:
        async def call() -> Command:
            async with Dialer() as dialer:
                return await dialer.call(self.address, code, header, timeout_s=10)

        return asyncio.run(call())

    def pop(self, invisible_ms: int = INVISIBLE_MS) -> list[Popped]:
        header = PopRequest(
            consumer_group=self.group, topic=self.topic, queue_id=-1, max_msg_nums=32,
            invisible_time=invisible_ms, poll_time=0, born_time=time.time_ns() // 1_000_000, init_mode=0,
        )  # fmt: skip
        answer = self._call(RequestCode.POP_MESSAGE, header)
        found = popped(answer, self.topic, self.group) if answer.code == 0 else []
        for one in found:
            one.handle = one.handle._replace(broker_name=self.broker)
        return found

    def pop_until(self, count: int) -> list[Popped]:
        """Pop and acknowledge until there were so many messages."""
        found: list[Popped] = []
        end_s = time.monotonic() + WAIT_S
        while len(found) < count:
            assert time.monotonic() < end_s, [one.body for one in found]
            more = self.pop()
            for one in more:
                self.ack(one)
            found += more
            time.sleep(0.3)
        return found

    def ack(self, one: Popped) -> None:
        header = AckRequest(
            consumer_group=self.group, topic=one.topic, queue_id=one.handle.queue_id,
            extra_info=str(one.handle), offset=one.handle.offset,
        )  # fmt: skip
        assert self._call(RequestCode.ACK_MESSAGE, header).code == 0

    def delay(self, one: Popped, invisible_ms: int) -> None:
        header = ChangeInvisibleTimeRequest(
            consumer_group=self.group, topic=one.topic, queue_id=one.handle.queue_id,
            extra_info=str(one.handle), offset=one.handle.offset, invisible_time=invisible_ms,
        )  # fmt: skip
        assert self._call(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header).code == 0


@pytest.mark.parametrize("clean", [True, False], ids=["stop", "kill"])
@pytest.mark.parametrize("first", ["apache", "ours"])
def test_messages_that_are_out_come_again_at_the_other_broker(
    java: Factory,
    java_driver: JavaDriver,
    java_nameserver: JavaNameServer,
    tmp_path: Path,
    unique: Unique,
    first: str,
    clean: bool,
) -> None:
    namesrv, name = java_nameserver.address, unique("popping")
    turns = Turns(java, namesrv, tmp_path / "ours", name)
    if turns.theirs.jars.is_4x:
        pytest.skip("4.x has no POP")
    one, other = (turns.theirs, turns.ours) if first == "apache" else (turns.ours, turns.theirs)
    topic, group = unique("topic"), unique("group")
    try:
        one.start()
        java_driver.create_topic(namesrv, one.address, topic, 1)
        java_driver.mqadmin("updateSubGroup", "-n", namesrv, "-b", one.address, "-g", group)
        producer = java_driver.call("producer.start", group=unique("pid"), namesrv=namesrv)
        for number in range(6):
            message = {"topic": topic, "text": str(number)}
            assert java_driver.call("producer.send", handle=producer, message=message)["status"] == "SEND_OK"
        java_driver.call("shutdown", handle=producer)
        member = Member(one.address, name, topic, group)
        found = {message.body: message for message in member.pop()}
        assert sorted(found) == [str(number) for number in range(6)]
        member.ack(found["0"])
        member.ack(found["1"])
        member.delay(found["2"], INVISIBLE_MS)
        if not clean:
            time.sleep(17)  # the pop is stored, and the offset of the group is saved
        change(one, other, clean=clean)
        again = member.pop_until(4)
        assert sorted(message.body for message in again) == ["2", "3", "4", "5"]
        assert {message.message.reconsume_times for message in again} == {1}
        change(other, one, clean=True)
        end_s = time.monotonic() + 8
        while time.monotonic() < end_s:
            assert member.pop() == []
            time.sleep(1)
    finally:
        turns.finish()
