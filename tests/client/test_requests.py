"""Request and reply, end to end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from kerolox import ClientOptions, Message, Producer, Received
from kerolox.client.errors import InvalidMessage, NoReply
from kerolox.testing.broker import RunningBroker, running_broker
from tests.client.kit import create, stored


@pytest.fixture
async def running() -> AsyncIterator[RunningBroker]:
    async with running_broker() as running:
        await create(running, "questions", 2)
        yield running


async def next_request(running: RunningBroker, topic: str = "questions", seen: int = 0) -> Received:
    async with asyncio.timeout(5):
        while True:
            found = await stored(running.nameserver_address, topic)
            if len(found) > seen:
                return found[-1]
            await asyncio.sleep(0.02)


async def test_a_reply_comes_back(running: RunningBroker) -> None:
    async with (
        Producer(running.nameserver_address, group="askers") as asker,
        Producer(running.nameserver_address, group="answerers") as answerer,
    ):
        asking = asyncio.create_task(asker.request(Message("questions", b"6*7"), timeout_s=10))
        request = await next_request(running)
        receipt = await answerer.reply(request, b"42" * 4000, properties={"unit": "none"})
        assert receipt.ok
        reply = await asking
        assert reply.body == b"42" * 4000
        assert reply.get("unit") == "none"
        assert reply.get("CORRELATION_ID") == request.get("CORRELATION_ID")
        assert reply.get("ARRIVE_TIME")
        assert asker.client.replies == {}


async def test_no_reply_in_time(running: RunningBroker) -> None:
    async with Producer(running.nameserver_address, group="askers") as asker:
        with pytest.raises(NoReply, match="questions") as caught:
            await asker.request(Message("questions", b"?"), timeout_s=0.3)
        assert caught.value.retriable
        assert asker.client.replies == {}
        request = await next_request(running)
        # Too late: the broker is told that it was taken all the same, and nobody is disturbed.
        assert (await asker.reply(request, b"late")).ok


async def test_only_requests_can_be_replied_to(running: RunningBroker) -> None:
    async with Producer(running.nameserver_address, group="shop") as producer:
        await producer.send(Message("questions", b"no request"))
        with pytest.raises(InvalidMessage, match="CORRELATION_ID"):
            await producer.reply(await next_request(running), b"x")


async def test_in_a_namespace(running: RunningBroker) -> None:
    options = ClientOptions(running.nameserver_address, namespace="house")
    async with Producer(options, group="askers") as asker, Producer(options, group="answerers") as answerer:
        asking = asyncio.create_task(asker.request(Message("questions", b"?"), timeout_s=10))
        request = await next_request(running, "house%questions")
        await answerer.reply(request, b"!")
        assert (await asking).text == "!"
