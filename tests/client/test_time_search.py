"""Finding where a time begins in a queue, with brokers that are exact and brokers that are not."""

from __future__ import annotations

from bisect import bisect_left
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerolox import ClientOptions, Message, Producer, PullConsumer
from kerolox.client.calls import time_search as module
from kerolox.client.calls.steps import Ask, in_turn
from kerolox.client.calls.time_search import time_search
from kerolox.protocol.codes import VERSION, VERSION_EXACT_TIMES, RequestCode, ResponseCode
from kerolox.protocol.command import Command
from kerolox.protocol.header import Header, encode_fields
from kerolox.protocol.headers.offset import OffsetAnswer, SearchOffsetRequest
from kerolox.protocol.headers.pull import PullAnswer, PullRequest
from kerolox.protocol.record import encode_record, topic_field
from kerolox.testing.broker import running_broker

OLD = VERSION_EXACT_TIMES - 1


class Broker:
    """A queue whose messages were stored at these times, the first of them at an offset."""

    def __init__(self, times: list[int], first: int = 0, *, version: int = OLD, guess: int = 0) -> None:
        self.times, self.first, self.version, self.guess = times, first, version, guess
        self.looks: list[int] = []

    def ask(self, asked: Ask) -> Command:
        code, header = asked.code, asked.header
        end = self.first + len(self.times)
        if isinstance(header, PullRequest):
            return self._pulled(header.queue_offset)
        if isinstance(header, SearchOffsetRequest):
            offset = self.guess
        else:
            offset = self.first if code == RequestCode.GET_MIN_OFFSET else end
        return self._answer(0, OffsetAnswer(offset=offset))

    def _answer(self, code: int, header: Header, body: bytes = b"") -> Command:
        return Command(code, fields=encode_fields(header), body=body, version=self.version)

    def _pulled(self, offset: int) -> Command:
        self.looks.append(offset)
        at = offset - self.first
        header = PullAnswer(next_begin_offset=0, min_offset=0, max_offset=0, suggest_which_broker_id=0)
        if not 0 <= at < len(self.times):
            return self._answer(ResponseCode.PULL_OFFSET_MOVED, header)
        record = encode_record(
            0, 0, offset, 0, 0, 1, bytes(8), self.times[at], bytes(8), 0, 0, b"x", topic_field("T"), b""
        )
        return self._answer(0, header, record)


def found(broker: Broker, time_ms: int) -> int:
    return in_turn(time_search("T", "broker-a", 0, time_ms, "g"), broker.ask)


def test_a_new_broker_is_believed() -> None:
    broker = Broker([10, 20], guess=1, version=VERSION)
    assert (found(broker, 15), broker.looks) == (1, [])


def test_the_nearest_is_set_right_by_two_looks() -> None:
    times = [number * 10 for number in range(100)]
    for guess in (41, 42):  # what an old broker may say to 414
        broker = Broker(times, guess=guess)
        assert found(broker, 414) == 42
        assert sorted(broker.looks) == [41, 42]
    beyond = Broker(times, guess=99)  # it says the last one
    assert (found(beyond, 5000), beyond.looks) == (100, [99])


def test_one_of_many_of_a_millisecond_leads_to_the_first() -> None:
    times = [1] * 5000 + [2] * 5000 + [3] * 5000
    broker = Broker(times, guess=9000)
    assert found(broker, 2) == 5000
    assert len(broker.looks) < 30


def test_an_empty_queue() -> None:
    assert found(Broker([], first=7), 1) == 7


@pytest.mark.parametrize("vip_channel", [False, True])
async def test_a_consumer_asks_a_broker_that_is_not_exact(
    monkeypatch: pytest.MonkeyPatch, vip_channel: bool
) -> None:
    """Ours taken for an old one. Its second port, like RocketMQ's, serves no pulls."""
    monkeypatch.setattr(module, "VERSION_EXACT_TIMES", VERSION + 1)
    async with running_broker() as running:
        where = ClientOptions(running.nameserver_address, vip_channel=vip_channel)
        async with Producer(where, group="p") as producer:
            receipts = await producer.send_batch([Message("T", f"{number}") for number in range(3)])
        async with PullConsumer(where, group="g") as consumer:
            queue = receipts[0].queue
            found = [
                await consumer.offsets_for_time([queue], datetime.fromtimestamp(at_s, UTC))
                for at_s in (1, 4_000_000_000)
            ]
    assert found == [{queue: 0}, {queue: 3}]


@given(
    st.lists(st.integers(0, 30), max_size=60).map(sorted),
    st.integers(0, 5),
    st.integers(-1, 70),
    st.integers(0, 31),
)
def test_whatever_the_guess(times: list[int], first: int, guess: int, time_ms: int) -> None:
    assert found(Broker(times, first, guess=guess), time_ms) == first + bisect_left(times, time_ms)
