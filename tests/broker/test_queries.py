"""Finding messages over a connection: by key, by place, by queue."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from kerolox.broker.consume import queries
from kerolox.net.dialer import Dialer
from kerolox.protocol.bodies.stats import ConsumeQueueView
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import Command
from kerolox.protocol.headers.query import (
    QueryConsumeQueueRequest,
    QueryMessageAnswer,
    QueryMessageRequest,
    ViewMessageRequest,
)
from kerolox.protocol.headers.send import SendAnswer
from kerolox.protocol.message_id import read_offset_id
from kerolox.protocol.record import decode_record, decode_records
from kerolox.protocol.subscription import tag_hash
from kerolox.testing.broker import running_broker
from tests.broker.talk import Talk, subscribed

FOREVER_MS = (1 << 63) - 1


@pytest.fixture
async def talk() -> AsyncIterator[Talk]:
    async with running_broker() as running, Dialer() as dialer:
        yield Talk(dialer, running)


async def by_key(
    talk: Talk, key: str, *, topic: str = "t", max_num: int = 32, begin: int = 0, end: int = FOREVER_MS,
    unique: bool = False,
) -> Command:  # fmt: skip
    header = QueryMessageRequest(
        topic=topic, key=key, max_num=max_num, begin_timestamp=begin, end_timestamp=end, unique_key=unique
    )
    return await talk.dialer.call(talk.address, RequestCode.QUERY_MESSAGE, header)


async def test_by_key(talk: Talk) -> None:
    for number in range(5):
        await talk.send("t", b"%d" % number, {"KEYS": f"k{number} all", "UNIQ_KEY": f"u{number}"})
    answer = await by_key(talk, "k3")
    assert [record.body for record in decode_records(answer.body)] == [b"3"]
    reach = answer.header(QueryMessageAnswer)
    assert reach.index_last_update_timestamp > 0
    assert reach.index_last_update_phy_offset > 0
    assert [r.body for r in decode_records((await by_key(talk, "all")).body)] == [
        b"0",
        b"1",
        b"2",
        b"3",
        b"4",
    ]
    assert [r.body for r in decode_records((await by_key(talk, "all", max_num=2)).body)] == [b"3", b"4"]
    unique = await by_key(talk, "u2", max_num=0, unique=True)
    assert [record.body for record in decode_records(unique.body)] == [b"2"]


async def test_nothing_found_is_said_so(talk: Talk) -> None:
    await talk.send("t", b"x", {"KEYS": "k"})
    for answer in (
        await by_key(talk, "nothing"),
        await by_key(talk, "k", topic="other"),
        await by_key(talk, "k", end=1),
        await by_key(talk, "k", max_num=-1),
    ):
        assert (answer.code, answer.body) == (ResponseCode.QUERY_NOT_FOUND, b"")


async def test_an_answer_fits_into_a_frame(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "ANSWER_BYTES_MAX", 3000)
    for number in range(4):
        await talk.send("t", bytes([65 + number]) * 1000, {"KEYS": "k"})
    answer = await by_key(talk, "k")
    assert [record.body[:1] for record in decode_records(answer.body)] == [b"A", b"B"]
    assert "2 more messages do not fit" in (answer.remark or "")


async def test_by_place(talk: Talk) -> None:
    await talk.send("t", b"first")
    sent = (await talk.send("t", b"second")).header(SendAnswer)
    place = read_offset_id(sent.msg_id).physical_offset
    ask = talk.dialer.call
    answer = await ask(talk.address, RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequest(offset=place))
    assert decode_record(answer.body).body == b"second"
    for wrong in (place + 1, 1 << 40, -1):
        answer = await ask(talk.address, RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequest(offset=wrong))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert str(wrong) in (answer.remark or "")


async def entries(talk: Talk, **fields: object) -> Command:
    header = QueryConsumeQueueRequest(**{"topic": "t", "count": 10, **fields})  # type: ignore[arg-type]
    return await talk.dialer.call(talk.address, RequestCode.QUERY_CONSUME_QUEUE, header)


async def test_queue_entries(talk: Talk) -> None:
    for tag in ("a", "b", "a"):
        await talk.send("t", b"x", {"TAGS": tag})
    view = ConsumeQueueView.decode((await entries(talk, index=1)).body)
    assert (view.min_queue_index, view.max_queue_index) == (0, 3)
    assert view.queue_data is not None
    assert [entry.tags_code for entry in view.queue_data] == [tag_hash("b"), tag_hash("a")]
    await talk.heartbeat("g", subscribed("t", "a"))
    view = ConsumeQueueView.decode((await entries(talk, consumer_group="g")).body)
    assert view.subscription_data is not None
    assert [entry.eval for entry in view.queue_data or ()] == [True, False, True]
    view = ConsumeQueueView.decode((await entries(talk, consumer_group="nobody")).body)
    assert view.filter_data == "nobody@t is not online!"


async def test_queue_entries_that_are_not_there(talk: Talk) -> None:
    await talk.send("t", b"x")
    assert (await entries(talk, topic="other")).code == ResponseCode.SYSTEM_ERROR
    answer = await entries(talk, index=99)
    assert (answer.code, answer.remark) == (0, "Index 99 of 0@t is not exist!")
    assert ConsumeQueueView.decode(answer.body).max_queue_index == 1
    assert ConsumeQueueView.decode((await entries(talk, count=-5)).body).queue_data == ()
