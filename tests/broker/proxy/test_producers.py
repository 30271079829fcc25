"""Producers by gRPC: routes, sends of every kind, transactions, and what other clients see of them."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import grpc.aio
import pytest

from kerolox import Message, Producer, PullConsumer, PullOptions
from kerolox.protocol.grpc.messages import (
    AddressScheme,
    Code,
    MessageType,
    Permission,
    Resolution,
    TransactionSource,
    make,
)

from .grpc_kit import Served, grpc_broker, ok, producer_settings, resource


async def pulled(served: Served, topic: str, count: int) -> list[Any]:
    """Return messages as a consumer by remoting reads them."""
    options = PullOptions(start="first")
    async with PullConsumer(
        served.running.nameserver_address, group=f"reads-{topic}", topics=[topic], options=options
    ) as consumer:
        found: list[Any] = []
        async with asyncio.timeout(10):
            async for batch in consumer:
                found += batch
                if len(found) >= count:
                    return found
        raise AssertionError("the consumer ended")


def asked_of(host: str, port: int, scheme: AddressScheme = AddressScheme.IPV4) -> Any:
    return make("Endpoints", scheme=scheme, addresses=[make("Address", host=host, port=port)])


# --- routes -----------------------------------------------------------------------------------------------


async def test_a_route_echoes_the_address_and_tells_ids_rights_and_types() -> None:
    async with grpc_broker() as served:
        client = served.client()
        await served.topic("orders", "FIFO", queues=3)
        endpoints = asked_of("broker.example", 18081, AddressScheme.DOMAIN_NAME)
        route = ok(await client.call("QueryRoute", topic=resource("orders"), endpoints=endpoints))
        assert [queue.id for queue in route.message_queues] == [0, 1, 2]
        for queue in route.message_queues:
            assert queue.topic.name == "orders"
            assert queue.permission == Permission.READ_WRITE
            assert (queue.broker.name, queue.broker.id) == (served.broker.options.broker_name, 0)
            assert queue.broker.endpoints == endpoints
            assert list(queue.accept_message_types) == [MessageType.FIFO]
        again = await client.call("QueryRoute", topic=resource("orders"), endpoints=endpoints)
        assert again.SerializeToString() == route.SerializeToString()


@pytest.mark.parametrize(
    ("name", "code"),
    [("missing", Code.TOPIC_NOT_FOUND), ("", Code.ILLEGAL_TOPIC), ("x" * 128, Code.ILLEGAL_TOPIC),
     ("a/b", Code.ILLEGAL_TOPIC), ("SCHEDULE_TOPIC_XXXX", Code.ILLEGAL_TOPIC)],
)  # fmt: skip
async def test_routes_that_do_not_exist(name: str, code: Code) -> None:
    async with grpc_broker() as served:
        endpoints = asked_of("127.0.0.1", 8081)
        response = await served.client().call("QueryRoute", topic=resource(name), endpoints=endpoints)
        assert response.status.code == code
        assert name[:50] in response.status.message


async def test_types_of_topics() -> None:
    async with grpc_broker() as served:
        client = served.client()
        for attribute, types in [
            ("", [MessageType.NORMAL]),
            ("DELAY", [MessageType.DELAY]),
            ("TRANSACTION", [MessageType.TRANSACTION]),
        ]:
            name = await served.topic(f"t-{attribute}", attribute)
            endpoints = asked_of("127.0.0.1", 8081)
            route = await client.call("QueryRoute", topic=resource(name), endpoints=endpoints)
            assert list(route.message_queues[0].accept_message_types) == types


# --- calls that are no calls ------------------------------------------------------------------------------


async def test_calls_without_a_client_id_and_calls_that_do_not_exist() -> None:
    async with grpc_broker() as served:
        nobody = served.client(client_id=" ")
        for name in ("QueryRoute", "SendMessage", "Heartbeat", "AckMessage", "EndTransaction"):
            response = await nobody.call(name)
            assert response.status.code == Code.CLIENT_ID_REQUIRED, name
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await served.client().call("SyncLiteSubscription")
        assert failed.value.code() is grpc.StatusCode.UNIMPLEMENTED
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await served.channel.unary_unary("/apache.rocketmq.v2.MessagingService/QueryRoute")(b"\xff\xff")
        assert failed.value.code() is grpc.StatusCode.INTERNAL


async def test_health() -> None:
    async with grpc_broker() as served:
        check = served.channel.unary_unary("/grpc.health.v1.Health/Check")
        assert await check(b"") == b"\x08\x01"
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await check(b"\x0a\x05other")
        assert failed.value.code() is grpc.StatusCode.NOT_FOUND


# --- sends ------------------------------------------------------------------------------------------------


async def test_a_message_reaches_consumers_by_remoting_as_it_was_sent() -> None:
    async with grpc_broker() as served:
        await served.topic("bills")
        client = served.client()
        first = ok(await client.send("bills", b"one", tag="paid", properties={"color": "blue"}))
        (entry,) = first.entries
        (message,) = await pulled(served, "bills", 1)
        assert (message.body, message.tag, message.properties["color"]) == (b"one", "paid", "blue")
        assert message.message_id == entry.message_id
        assert entry.transaction_id == ""


async def test_a_message_group_keeps_its_queue_and_order() -> None:
    async with grpc_broker() as served:
        await served.topic("orders", "FIFO", queues=8)
        client = served.client()
        for number in range(5):
            response = ok(await client.send("orders", b"%d" % number, message_group="g1"))
            assert response.entries[0].offset == number
        found = await pulled(served, "orders", 5)
        assert {message.queue_id for message in found} == {6}
        assert [message.body for message in found] == [b"0", b"1", b"2", b"3", b"4"]


async def test_a_batch_has_an_entry_for_each_message() -> None:
    async with grpc_broker() as served:
        await served.topic("bills", queues=1)
        client = served.client()
        response = ok(await client.send("bills", count=3))
        assert [entry.offset for entry in response.entries] == [0, 1, 2]
        found = await pulled(served, "bills", 3)
        assert [message.message_id for message in found] == [entry.message_id for entry in response.entries]


async def test_types_that_a_topic_does_not_accept() -> None:
    async with grpc_broker() as served:
        for kind in ("NORMAL", "FIFO", "DELAY", "TRANSACTION"):
            await served.topic(f"t-{kind}", kind)
        client = served.client()
        sends: dict[str, dict[str, Any]] = {
            "NORMAL": {},
            "FIFO": {"message_group": "g"},
            "DELAY": {"delivery_timestamp": int(time.time() * 1000) + 60_000},
            "TRANSACTION": {"message_type": MessageType.TRANSACTION},
        }
        for kind, system in sends.items():
            for topic in sends:
                response = await client.send(f"t-{topic}", **system)
                expected = Code.OK if kind == topic else Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
                assert response.status.code == expected, (kind, topic)


async def test_requests_that_hold_nothing_or_too_much() -> None:
    async with grpc_broker() as served:
        await served.topic("bills")
        client = served.client()
        assert (await client.call("SendMessage")).status.code == Code.MESSAGE_CORRUPTED
        assert (await client.send("missing")).status.code == Code.TOPIC_NOT_FOUND
        assert (await client.send("bills", b"")).status.code == Code.MESSAGE_BODY_EMPTY
        assert (await client.send("bills", bytes((4 << 20) + 1))).status.code == Code.MESSAGE_BODY_TOO_LARGE
        ok(await client.send("bills", bytes(4 << 20)))


async def test_a_delayed_message_is_taken_back_once() -> None:
    async with grpc_broker(recallMessageEnable=True) as served:
        await served.topic("later", "DELAY")
        client = served.client()
        due_ms = int(time.time() * 1000) + 60_000
        sent = ok(await client.send("later", delivery_timestamp=due_ms))
        handle = sent.entries[0].recall_handle
        assert handle
        recalled = ok(await client.call("RecallMessage", topic=resource("later"), recall_handle=handle))
        assert recalled.message_id == sent.entries[0].message_id
        bad = await client.call("RecallMessage", topic=resource("later"), recall_handle="nonsense")
        assert bad.status.code != Code.OK


# --- clients, as brokers know them ------------------------------------------------------------------------


async def test_settings_are_answered_and_producers_registered() -> None:
    async with grpc_broker() as served:
        await served.topic("bills")
        client = served.client()
        stream = client.telemetry()
        answer = await stream.settle(producer_settings("bills"))
        assert answer.status.code == Code.OK
        assert answer.settings.backoff_policy.max_attempts == 3
        assert "bills" in served.broker.membership.members.producers
        empty = await stream.settle(producer_settings())
        assert empty.status.code == Code.OK
        ok(await client.call("Heartbeat"))
        ok(await client.call("NotifyClientTermination"))
        assert "bills" not in served.broker.membership.members.producers
        ok(await client.call("NotifyClientTermination"))  # a second one does no harm


async def test_settings_of_neither_kind_end_the_stream() -> None:
    async with grpc_broker() as served:
        stream = served.client().telemetry()
        await stream.say(settings=make("Settings"))
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await stream.stream.read()
        assert failed.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        nobody = served.client(client_id="").telemetry()
        await nobody.say(settings=producer_settings())
        assert (await nobody.hear()).status.code == Code.CLIENT_ID_REQUIRED


async def test_a_second_stream_takes_over() -> None:
    async with grpc_broker() as served:
        client = served.client()
        first, second = client.telemetry(), client.telemetry()
        await first.settle(producer_settings())
        await second.settle(producer_settings())
        assert await first.hear() is grpc.aio.EOF


# --- transactions -----------------------------------------------------------------------------------------


async def test_a_transaction_is_committed_or_rolled_back() -> None:
    async with grpc_broker() as served:
        await served.topic("deals", "TRANSACTION")
        client = served.client()
        ids = []
        for resolution, body in ((Resolution.COMMIT, b"kept"), (Resolution.ROLLBACK, b"dropped")):
            sent = ok(await client.send("deals", body, message_type=MessageType.TRANSACTION))
            (entry,) = sent.entries
            assert entry.transaction_id == entry.message_id
            end = {
                "topic": resource("deals"), "message_id": entry.message_id,
                "transaction_id": entry.transaction_id, "resolution": resolution,
                "source": TransactionSource.CLIENT,
            }  # fmt: skip
            ok(await client.call("EndTransaction", **end))
            ids.append(end)
        (message,) = await pulled(served, "deals", 1)
        assert message.body == b"kept"
        unknown = {**ids[0], "transaction_id": "unknown"}
        assert (await client.call("EndTransaction", **unknown)).status.code == Code.INTERNAL_SERVER_ERROR
        blank = {**ids[0], "transaction_id": ""}
        assert (await client.call("EndTransaction", **blank)).status.code == Code.INVALID_TRANSACTION_ID


async def test_an_open_transaction_is_asked_about() -> None:
    async with grpc_broker(transaction_timeout_ms=100, transaction_check_ms=200) as served:
        await served.topic("deals", "TRANSACTION")
        client = served.client()
        stream = client.telemetry()
        await stream.settle(producer_settings())  # without the topic: the send makes it known
        sent = ok(await client.send("deals", b"kept", message_type=MessageType.TRANSACTION))
        command = await stream.hear()
        recover = command.recover_orphaned_transaction_command
        assert recover.transaction_id == sent.entries[0].transaction_id
        assert (recover.message.topic.name, recover.message.body) == ("deals", b"kept")
        assert recover.message.system_properties.message_type == MessageType.TRANSACTION
        end = {
            "topic": resource("deals"), "message_id": recover.message.system_properties.message_id,
            "transaction_id": recover.transaction_id, "resolution": Resolution.COMMIT,
            "source": TransactionSource.SERVER_CHECK,
        }  # fmt: skip
        ok(await client.call("EndTransaction", **end))
        (message,) = await pulled(served, "deals", 1)
        assert message.body == b"kept"


async def test_messages_of_both_kinds_of_producers_stand_in_one_topic() -> None:
    async with grpc_broker() as served:
        await served.topic("bills", queues=1)
        async with Producer(served.running.nameserver_address, group="shop") as producer:
            await producer.send(Message("bills", b"by remoting"))
        ok(await served.client().send("bills", b"by gRPC"))
        found = await pulled(served, "bills", 2)
        assert [message.body for message in found] == [b"by remoting", b"by gRPC"]
