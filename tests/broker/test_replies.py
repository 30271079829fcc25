"""Replies over real sockets: brought to the client that asked, and stored."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kerolox.front.lanes import Lane
from kerolox.front.requests import Answer, Request
from kerolox.net.dialer import Dialer
from kerolox.net.handlers import RemotingHandlers
from kerolox.protocol.bodies.heartbeat import HeartbeatData, ProducerData
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import Command
from kerolox.protocol.frame import BINARY, JSON
from kerolox.protocol.headers.reply import PushReply
from kerolox.protocol.headers.send import SendRequest, SendRequestV2
from kerolox.protocol.properties import unpack
from kerolox.store.state import Obstacle
from kerolox.testing.broker import running_broker

from .talk import BORN_MS, Talk, send_fields

TOPIC = "DefaultCluster_REPLY_TOPIC"
PROPERTIES = {"MSG_TYPE": "reply", "CORRELATION_ID": "c-1", "REPLY_TO_CLIENT": "asker", "TTL": "3000"}


class Asker:
    """The client that asked: it keeps what is pushed to it, and answers with ``code``."""

    def __init__(self) -> None:
        self.got: list[Request[PushReply]] = []
        self.code = 0
        self.handlers = RemotingHandlers()
        self.handlers.add(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, self._take, PushReply, Lane("client"))

    def _take(self, request: Request[PushReply]) -> Answer:
        self.got.append(request)
        return Answer(code=self.code, remark=None if self.code == 0 else "no room")

    async def come(self, dialer: Dialer, address: str) -> None:
        data = HeartbeatData(client_id="asker", producer_data_set=(ProducerData(group_name="askers"),))
        await dialer.call(address, RequestCode.HEART_BEAT, None, data.encode())


@asynccontextmanager
async def asked(encoding: int = JSON, **options: Any) -> AsyncIterator[tuple[Talk, Asker]]:
    asker = Asker()
    async with (
        running_broker(**options) as running,
        Dialer(encoding=encoding) as dialer,
        Dialer(asker.handlers, encoding=encoding) as other,
    ):
        await asker.come(other, running.address)
        yield Talk(dialer, running), asker


async def reply(
    talk: Talk, properties: dict[str, str] = PROPERTIES, body: bytes = b"42", **fields: Any
) -> Command:
    header = SendRequestV2(**send_fields(fields.pop("topic", TOPIC), properties, **fields))
    return await talk.dialer.call(talk.address, RequestCode.SEND_REPLY_MESSAGE_V2, header, body, timeout_s=20)


@pytest.mark.parametrize("encoding", [JSON, BINARY], ids=["json", "binary"])
async def test_a_reply_is_brought_to_the_client_that_asked_and_stored(encoding: int, tmp_path: Path) -> None:
    async with asked(encoding, directory=tmp_path) as (talk, asker):
        answer = await reply(talk, flag=3, reconsume_times=0)
        (pushed,) = asker.got
        told = pushed.header
        assert pushed.body == b"42"
        assert (told.topic, told.producer_group, told.queue_id, told.flag) == (TOPIC, "producers", 0, 3)
        assert (told.default_topic, told.default_topic_queue_nums, told.sys_flag) == ("TBW102", 4, 0)
        assert (told.born_timestamp, told.reconsume_times, told.unit_mode) == (BORN_MS, 0, False)
        assert told.born_host.startswith("127.0.0.1:")
        assert told.store_host == talk.address
        got = unpack((told.properties or "").encode())
        assert int(got.pop("PUSH_REPLY_TIME")) == told.store_timestamp > 0
        assert got == PROPERTIES

        assert (answer.code, answer.remark) == (0, None)
        port = talk.running.broker.endpoints.port
        assert answer.fields == {
            "msgId": f"7F000001{port:08X}" + "0" * 16,
            "queueId": "0",
            "queueOffset": "0",
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
        }
        (stored,) = await talk.messages(TOPIC)
        assert (stored.body, stored.flag, stored.born_timestamp) == (b"42", 3, BORN_MS)
        assert stored.properties == PROPERTIES  # as it came: nothing added


async def test_the_long_header_is_taken_too(tmp_path: Path) -> None:
    async with asked(directory=tmp_path) as (talk, asker):
        header = SendRequest(**send_fields(TOPIC, PROPERTIES))
        answer = await talk.dialer.call(talk.address, RequestCode.SEND_REPLY_MESSAGE, header, b"42")
        assert (answer.code, len(asker.got)) == (0, 1)


async def test_replies_need_not_be_stored(tmp_path: Path) -> None:
    async with asked(directory=tmp_path, store_replies=False) as (talk, asker):
        answer = await reply(talk)
        assert (answer.code, len(asker.got)) == (0, 1)
        assert (answer.fields["msgId"], answer.fields["queueOffset"]) == ("0", "0")
        assert await talk.messages(TOPIC) == []


async def test_a_client_that_is_not_there_is_said_and_the_reply_is_stored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with asked(directory=tmp_path) as (talk, asker):
        with caplog.at_level(logging.WARNING):
            answer = await reply(talk, PROPERTIES | {"REPLY_TO_CLIENT": "nobody"})
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark == "push reply message fail, channel of <nobody> not found."
        assert "reply_not_pushed" in caplog.text
        assert answer.fields["queueOffset"] == "0"
        assert len(await talk.messages(TOPIC)) == 1
        assert asker.got == []


async def test_without_the_name_of_a_client_nothing_can_be_brought(tmp_path: Path) -> None:
    async with asked(directory=tmp_path, store_replies=False) as (talk, _):
        answer = await reply(talk, {"CORRELATION_ID": "c-1"})
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark == "reply message properties[REPLY_TO_CLIENT] is null"
        assert answer.fields == {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}


async def test_a_client_that_refuses_the_reply_fails_it(tmp_path: Path) -> None:
    async with asked(directory=tmp_path) as (talk, asker):
        asker.code = 1
        answer = await reply(talk)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark is not None
        assert answer.remark.startswith("push reply message to asker fail")
        assert "no room" in answer.remark


async def test_a_reply_that_cannot_be_stored_is_brought_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with asked(directory=tmp_path) as (talk, asker):
        talk.running.broker.store.state.set(Obstacle.DISK_FULL, "no room left")
        with caplog.at_level(logging.WARNING):
            answer = await reply(talk)
        assert (answer.code, answer.fields["msgId"], len(asker.got)) == (0, "0", 1)
        assert "reply_not_stored" in caplog.text


async def test_topics_are_checked_as_for_sends(tmp_path: Path) -> None:
    async with asked(directory=tmp_path) as (talk, asker):
        for topic, code in [
            ("not allowed!", ResponseCode.INVALID_PARAMETER),
            ("SELF_TEST_TOPIC", ResponseCode.NO_PERMISSION),
        ]:
            assert (await reply(talk, topic=topic)).code == code
        assert (await reply(talk, queue_id=9)).code == ResponseCode.INVALID_PARAMETER
        assert (await reply(talk, default_topic="none", topic="new")).code == ResponseCode.TOPIC_NOT_EXIST
        assert asker.got == []


async def test_replies_come_to_the_newest_connection_of_the_client(tmp_path: Path) -> None:
    async with asked(directory=tmp_path) as (talk, first):
        second = Asker()
        async with Dialer(second.handlers) as dialer:
            await second.come(dialer, talk.address)
            await asyncio.gather(*[reply(talk) for _ in range(20)])
        assert (len(first.got), len(second.got)) == (0, 20)
        assert (await reply(talk)).code == 0  # the first is still there
        assert len(first.got) == 1


async def test_a_client_that_does_not_answer_fails_the_reply_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kerolox.broker.produce.replies.PUSH_TIMEOUT_S", 0.2)
    async with asked(directory=tmp_path) as (talk, asker):
        route = asker.handlers.routes[RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT]
        route.handler = lambda request: asker.got.append(request)  # and never an answer
        answer = await reply(talk)
        assert (answer.code, len(asker.got)) == (ResponseCode.SYSTEM_ERROR, 1)
        assert answer.remark is not None
        assert answer.remark.startswith("push reply message to asker fail")
        assert len(await talk.messages(TOPIC)) == 1
