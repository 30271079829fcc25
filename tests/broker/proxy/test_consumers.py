"""Consumers by gRPC: receiving, acknowledging, changing, giving up, order, and what a lost call may cost."""

from __future__ import annotations

import asyncio
import time
import zlib
from typing import Any

import pytest

from kerolox import Message, Producer
from kerolox.protocol.bodies.groups import GroupConfig
from kerolox.protocol.grpc.messages import ClientType, Code, FilterType, make

from .grpc_kit import Served, consumer_settings, grpc_broker, ok, resource


async def ready(served: Served, topic: str = "bills", group: str = "billing", **config: Any) -> Any:
    """Return a consumer of a topic with one queue, whose group begins at the first message."""
    await served.topic(topic, config.pop("kind", "NORMAL"), queues=config.pop("queues", 1))
    if config:
        served.broker.membership.groups.put(GroupConfig(group_name=group, **config))
    client = served.client()
    stream = client.telemetry()
    answer = await stream.settle(consumer_settings(group, topic))
    assert answer.status.code == Code.OK
    return client


async def test_frames_come_in_the_order_that_clients_expect() -> None:
    async with grpc_broker() as served:
        client = await ready(served)
        for number in range(3):
            ok(await client.send("bills", b"%d" % number))
        frames = await client.receive("bills", "billing")
        kinds = [frame.WhichOneof("content") for frame in frames]
        assert kinds == ["status", "message", "message", "message", "delivery_timestamp"]
        assert frames[0].status.code == Code.OK
        assert [frame.message.body for frame in frames[1:-1]] == [b"0", b"1", b"2"]
        system = frames[1].message.system_properties
        assert system.delivery_attempt == 1
        assert len(system.receipt_handle.split(" ")) == 9


async def test_nothing_to_receive_is_told_when_the_polling_time_is_over() -> None:
    async with grpc_broker() as served:
        client = await ready(served)
        began = time.monotonic()
        frames = await client.receive("bills", "billing", polling_ms=5000)
        took_s = time.monotonic() - began
        assert [frame.WhichOneof("content") for frame in frames] == ["status", "delivery_timestamp"]
        assert frames[0].status.code == Code.MESSAGE_NOT_FOUND
        assert 4.5 < took_s < 8


async def test_an_arrival_wakes_a_waiting_receive() -> None:
    async with grpc_broker() as served:
        client = await ready(served)
        waiting = asyncio.create_task(client.messages("bills", "billing", polling_ms=20_000))
        await asyncio.sleep(0.3)
        ok(await client.send("bills", b"late"))
        async with asyncio.timeout(5):
            (message,) = await waiting
        assert message.body == b"late"


async def test_an_acknowledged_message_does_not_come_again_and_others_do() -> None:
    async with grpc_broker() as served:
        client = await ready(served)
        for body in (b"done", b"again"):
            ok(await client.send("bills", body))
        done, again = await client.messages("bills", "billing", invisible_ms=10_000)
        ok(await client.ack("bills", "billing", done))
        async with asyncio.timeout(30):
            while not (found := await client.messages("bills", "billing")):
                pass
        assert [message.body for message in found] == [b"again"]
        system = found[0].system_properties
        assert system.delivery_attempt == 2
        assert system.message_id == again.system_properties.message_id
        assert (found[0].topic.name, dict(found[0].user_properties)) == ("bills", {})


async def test_a_change_to_nothing_makes_a_message_visible() -> None:
    async with grpc_broker() as served:
        client = await ready(served)
        ok(await client.send("bills", b"nack"))
        (message,) = await client.messages("bills", "billing", invisible_ms=600_000)
        changed = ok(await client.change("bills", "billing", message, 0))
        assert len(changed.receipt_handle.split(" ")) == 9
        async with asyncio.timeout(30):
            while not (found := await client.messages("bills", "billing", invisible_ms=600_000)):
                pass
        assert found[0].system_properties.delivery_attempt == 2
        await client.ack("bills", "billing", message)  # by the old handle: it acknowledges nothing
        ok(await client.change("bills", "billing", found[0], 0))
        async with asyncio.timeout(30):
            while not (found := await client.messages("bills", "billing", invisible_ms=600_000)):
                pass
        assert found[0].system_properties.delivery_attempt == 3
        ok(await client.ack("bills", "billing", *found))


async def test_a_changed_handle_works_and_bad_ones_are_refused_as_gone() -> None:
    async with grpc_broker() as served:
        client = await ready(served)
        ok(await client.send("bills", b"x"))
        (message,) = await client.messages("bills", "billing", invisible_ms=10_000)
        changed = ok(await client.change("bills", "billing", message, 600_000))
        too_long = await client.change("bills", "billing", message, 13 * 3_600_000)
        assert too_long.status.code == Code.ILLEGAL_INVISIBLE_TIME
        message.system_properties.receipt_handle = changed.receipt_handle
        ok(await client.ack("bills", "billing", message))
        for handle in ("", "nonsense", "1 2 3 4 0 broker-a 0 0 0"):
            message.system_properties.receipt_handle = handle
            refused = await client.ack("bills", "billing", message)
            assert refused.status.code == Code.INVALID_RECEIPT_HANDLE
            assert refused.entries[0].receipt_handle == handle


async def test_one_bad_entry_of_two() -> None:
    async with grpc_broker() as served:
        client = await ready(served)
        ok(await client.send("bills", b"x"))
        (message,) = await client.messages("bills", "billing")
        bad = make("Message")
        bad.system_properties.receipt_handle = "nonsense"
        response = await client.ack("bills", "billing", message, bad)
        assert response.status.code == Code.MULTIPLE_RESULTS
        assert [entry.status.code for entry in response.entries] == [Code.OK, Code.INVALID_RECEIPT_HANDLE]


async def test_times_at_their_bounds() -> None:
    async with grpc_broker() as served:
        client = await ready(served)
        for invisible_ms in (9_999, 43_200_001, None):
            (status, _) = await client.receive("bills", "billing", invisible_ms=invisible_ms)
            assert status.status.code == Code.ILLEGAL_INVISIBLE_TIME
        (status, _) = await client.receive("bills", "billing", timeout=4)
        assert status.status.code == Code.ILLEGAL_POLLING_TIME


@pytest.mark.parametrize(
    ("tag", "kind", "bodies"),
    [
        ("*", FilterType.TAG, [b"a", b"b", b"c"]),
        ("", FilterType.TAG, [b"a", b"b", b"c"]),
        ("a || c", FilterType.TAG, [b"a", b"c"]),
        ("TAGS = 'b'", FilterType.SQL, [b"b"]),
    ],
)
async def test_filters(tag: str, kind: FilterType, bodies: list[bytes]) -> None:
    async with grpc_broker(enablePropertyFilter=True) as served:
        client = await ready(served)
        for letter in ("a", "b", "c"):
            ok(await client.send("bills", letter.encode(), tag=letter))
        found = await client.messages("bills", "billing", tag=tag, kind=kind)
        assert [message.body for message in found] == bodies


async def test_a_filter_that_does_not_parse() -> None:
    async with grpc_broker(enablePropertyFilter=True) as served:
        client = await ready(served)
        (status, _) = await client.receive("bills", "billing", tag="a >", kind=FilterType.SQL)
        assert status.status.code == Code.ILLEGAL_FILTER_EXPRESSION


async def test_tags_with_the_same_hash_are_told_apart() -> None:
    async with grpc_broker() as served:
        client = await ready(served)
        ok(await client.send("bills", b"wanted", tag="Aa"))
        ok(await client.send("bills", b"other", tag="BB"))  # the same hash in Java
        (message,) = await client.messages("bills", "billing", tag="Aa")
        assert message.body == b"wanted"


async def test_bodies_of_producers_by_remoting_come_plain() -> None:
    async with grpc_broker() as served:
        client = await ready(served)
        body = b"text " * 2000  # compressed by the producer
        async with Producer(served.running.nameserver_address, group="shop") as producer:
            await producer.send(Message("bills", body, tags="t", properties={"color": "blue"}))
        (message,) = await client.messages("bills", "billing")
        assert message.body == body
        assert zlib.crc32(message.body) == zlib.crc32(body)
        assert dict(message.user_properties) == {"color": "blue"}


async def test_a_cancelled_receive_loses_nothing() -> None:
    async with grpc_broker() as served:
        client = await ready(served)
        waiting = asyncio.create_task(client.receive("bills", "billing", polling_ms=20_000))
        await asyncio.sleep(0.3)
        waiting.cancel()
        await asyncio.wait([waiting])
        ok(await client.send("bills", b"kept"))
        async with asyncio.timeout(20):
            while not (found := await client.messages("bills", "billing")):
                pass
        assert found[0].body == b"kept"


async def test_a_group_in_order_waits_for_its_acknowledgement() -> None:
    async with grpc_broker() as served:
        client = await ready(served, "orders", "cooks", kind="FIFO", consume_message_orderly=True)
        for number in range(3):
            ok(await client.send("orders", b"%d" % number, message_group="g"))
        (first,) = await client.messages("orders", "cooks", batch=1, attempt_id="a1")
        again = await client.messages("orders", "cooks", batch=1, attempt_id="a1")
        assert [message.body for message in again] == [first.body]  # the same attempt gets the same
        assert await client.messages("orders", "cooks", batch=1, attempt_id="a2") == []
        ok(await client.ack("orders", "cooks", *again))
        (second,) = await client.messages("orders", "cooks", batch=1, attempt_id="a3")
        assert (first.body, second.body) == (b"0", b"1")


async def test_a_message_is_given_up_by_its_client() -> None:
    async with grpc_broker() as served:
        client = await ready(served)
        ok(await client.send("bills", b"poison"))
        (message,) = await client.messages("bills", "billing", invisible_ms=600_000)
        ok(
            await client.call(
                "ForwardMessageToDeadLetterQueue",
                group=resource("billing"),
                topic=resource("bills"),
                receipt_handle=message.system_properties.receipt_handle,
                message_id=message.system_properties.message_id,
            )
        )
        assert served.broker.tables.topics.find("%DLQ%billing") is not None
        assert (await client.ack("bills", "billing", message)).status.code in (
            Code.OK, Code.INVALID_RECEIPT_HANDLE,
        )  # fmt: skip


async def test_assignments_are_one_for_a_broker_or_one_for_a_queue() -> None:
    async with grpc_broker() as served:
        client = await ready(served, queues=3)
        served.broker.membership.groups.put(GroupConfig(group_name="cooks", consume_message_orderly=True))
        endpoints = make("Endpoints", scheme=1, addresses=[make("Address", host="127.0.0.1", port=1)])
        for group, ids in (("billing", [-1]), ("cooks", [0, 1, 2])):
            asked = {"topic": resource("bills"), "group": resource(group), "endpoints": endpoints}
            first = ok(await client.call("QueryAssignment", **asked))
            assert [one.message_queue.id for one in first.assignments] == ids
            second = await client.call("QueryAssignment", **asked)
            assert first.SerializeToString() == second.SerializeToString()


async def test_consumers_are_members_of_their_group() -> None:
    async with grpc_broker() as served:
        client = await ready(served)
        members = served.broker.membership.members.consumers
        assert "billing" in members
        ok(await client.call("Heartbeat", group=resource("billing"), client_type=ClientType.PUSH_CONSUMER))
        ok(await client.call("NotifyClientTermination", group=resource("billing")))
        assert "billing" not in members


async def test_the_messages_of_a_client_that_leaves_are_given_back() -> None:
    async with grpc_broker() as served:
        client = await ready(served)
        ok(await client.send("bills", b"held"))
        (message,) = await client.messages("bills", "billing", auto_renew=True, invisible_ms=None)
        ok(await client.call("NotifyClientTermination", group=resource("billing")))
        other = served.client()
        async with asyncio.timeout(30):
            while not (found := await other.messages("bills", "billing")):
                pass
        assert found[0].body == message.body
