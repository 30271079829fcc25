"""Requests at the bounds of what the service takes, and clients that send more or less than others."""

from __future__ import annotations

import asyncio

import grpc.aio
import msgspec
import pytest

from kerolox.protocol.bodies.groups import GroupConfig
from kerolox.protocol.flags import PERM_WRITE
from kerolox.protocol.grpc.messages import AddressScheme, Code, FilterType, make

from .grpc_kit import consumer_settings, grpc_broker, ok, resource

UNARY = (
    "QueryRoute", "QueryAssignment", "Heartbeat", "NotifyClientTermination", "SendMessage", "RecallMessage",
    "EndTransaction", "AckMessage", "ChangeInvisibleDuration", "ForwardMessageToDeadLetterQueue",
)  # fmt: skip
ADVERTISED = "mq.example:18081"


async def test_every_call_needs_a_client_id() -> None:
    async with grpc_broker() as served:
        nobody = served.client(client_id=" ")
        for name in UNARY:
            assert (await nobody.call(name)).status.code == Code.CLIENT_ID_REQUIRED, name
        (status, _) = await nobody.receive("bills", "billing")
        assert status.status.code == Code.CLIENT_ID_REQUIRED


async def test_headers_that_nobody_knows() -> None:
    async with grpc_broker() as served:
        await served.topic("bills")
        headers = {
            "x-mq-language": "COBOL", "x-mq-client-version": "?", "x-mq-protocol": "v9", "x-mq-namespace": "",
        }  # fmt: skip
        ok(await served.client(metadata=headers).send("bills"))


async def test_a_route_echoes_every_address_of_the_client() -> None:
    async with grpc_broker() as served:
        await served.topic("bills")
        for scheme, hosts in {
            AddressScheme.IPV4: ["10.0.0.1", "10.0.0.2"], AddressScheme.IPV6: ["::1"],
            AddressScheme.DOMAIN_NAME: ["mq.example"],
        }.items():  # fmt: skip
            addresses = [make("Address", host=host, port=8081) for host in hosts]
            used = make("Endpoints", scheme=scheme, addresses=addresses)
            client = served.client()
            route = ok(await client.call("QueryRoute", topic=resource("bills"), endpoints=used))
            assert route.message_queues[0].broker.endpoints == used
        refused = await served.client().call("QueryRoute", topic=resource("bills"))
        assert refused.status.code == Code.BAD_REQUEST


async def test_an_advertised_address_is_given_to_all() -> None:
    async with grpc_broker(grpcAdvertised=ADVERTISED) as served:
        await served.topic("bills")
        route = ok(await served.client().call("QueryRoute", topic=resource("bills")))
        (address,) = route.message_queues[0].broker.endpoints.addresses
        assert f"{address.host}:{address.port}" == ADVERTISED


async def test_topics_that_cannot_be_read_are_not_assigned() -> None:
    async with grpc_broker(grpcAdvertised=ADVERTISED) as served:
        await served.topic("bills")
        topics = served.broker.tables.topics
        found = topics.find("bills")
        assert found is not None
        topics.put(msgspec.structs.replace(found, perm=PERM_WRITE))
        asked = {"topic": resource("bills"), "group": resource("billing")}
        refused = await served.client().call("QueryAssignment", **asked)
        assert refused.status.code == Code.FORBIDDEN


async def test_a_request_is_for_one_topic() -> None:
    async with grpc_broker() as served:
        messages = []
        for topic in ("bills", "orders"):
            await served.topic(topic)
            message = make("Message", topic=resource(topic), body=b"x")
            message.system_properties.message_id = topic
            messages.append(message)
        refused = await served.client().call("SendMessage", messages=messages)
        assert refused.status.code == Code.MESSAGE_CORRUPTED


async def test_32_messages_at_once_at_most() -> None:
    async with grpc_broker() as served:
        await served.topic("bills", queues=1)
        client = served.client()
        await client.messages("bills", "billing", polling_ms=5000, timeout=6)
        ok(await client.send("bills", count=40))
        assert len(await client.messages("bills", "billing", batch=64)) == 32


async def test_a_receive_without_a_deadline() -> None:
    async with grpc_broker() as served:
        await served.topic("bills")
        client = served.client()
        await client.messages("bills", "billing", polling_ms=5000, timeout=6)
        ok(await client.send("bills", b"x"))
        (message,) = await client.messages("bills", "billing", timeout=None)
        assert message.body == b"x"


async def test_65_receives_wait_on_one_connection() -> None:
    async with grpc_broker() as served:
        client = served.client()
        topics = [await served.topic(f"t{number}", queues=1) for number in range(65)]
        waiting = [
            asyncio.create_task(client.messages(topic, "billing", polling_ms=20_000, timeout=30))
            for topic in topics
        ]
        await asyncio.sleep(0.5)
        for topic in topics:
            ok(await client.send(topic, topic.encode()))
        found = await asyncio.gather(*waiting)
        assert [message.body.decode() for (message,) in found] == topics


async def test_a_filter_that_does_not_parse_ends_the_stream() -> None:
    async with grpc_broker() as served:
        await served.topic("bills")
        stream = served.client().telemetry()
        settings = consumer_settings("billing", "bills", tag="a >")
        settings.subscription.subscriptions[0].expression.type = FilterType.SQL
        refused = await stream.settle(settings)
        assert refused.status.code == Code.ILLEGAL_FILTER_EXPRESSION
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await stream.hear()
        assert "40010" in failed.value.details()


async def test_a_changed_group_is_seen_by_the_next_settings() -> None:
    async with grpc_broker() as served:
        await served.topic("bills")
        stream = served.client().telemetry()
        before = await stream.settle(consumer_settings("billing", "bills"))
        assert (before.settings.subscription.fifo, before.settings.backoff_policy.max_attempts) == (False, 17)
        served.broker.membership.groups.put(
            GroupConfig(group_name="billing", consume_message_orderly=True, retry_max_times=3)
        )
        after = await stream.settle(consumer_settings("billing", "bills"))
        assert (after.settings.subscription.fifo, after.settings.backoff_policy.max_attempts) == (True, 4)
        stream.close()
