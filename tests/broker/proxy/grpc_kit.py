"""A broker with its gRPC port, and a client of gRPC that speaks the service's messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import grpc.aio

from kerolox.broker.broker import Broker
from kerolox.protocol.grpc.messages import SERVICE, ClientType, Code, FilterType, make, parse
from kerolox.testing import RunningBroker, running_broker

_ids = count(1)


def resource(name: str) -> Any:
    return make("Resource", name=name)


@dataclass
class GrpcClient:
    """A client of the service, by its id."""

    channel: grpc.aio.Channel
    client_id: str = field(default_factory=lambda: f"test@{next(_ids)}")
    metadata: dict[str, str] = field(default_factory=dict)

    def _headers(self) -> list[tuple[str, str]]:
        own = {"x-mq-client-id": self.client_id, "x-mq-language": "PYTHON", "x-mq-client-version": "5.1.2"}
        return [(name, value) for name, value in {**own, **self.metadata}.items() if value is not None]

    async def call(self, name: str, *, timeout: float | None = 10, **fields: Any) -> Any:
        """Make a unary call."""
        data = make(f"{name}Request", **fields).SerializeToString()
        method = self.channel.unary_unary(f"/{SERVICE}/{name}")
        return parse(f"{name}Response", await method(data, metadata=self._headers(), timeout=timeout))

    async def send(self, topic: str, body: bytes = b"body", count: int = 1, **system: Any) -> Any:
        messages = []
        for number in range(count):
            message = make("Message", topic=resource(topic), body=body)
            message.system_properties.message_id = f"{self.client_id}#{next(_ids)}"
            for name, value in system.items():
                if name == "delivery_timestamp":
                    message.system_properties.delivery_timestamp.FromMilliseconds(value)
                elif name == "properties":
                    message.user_properties.update(value)
                else:
                    setattr(message.system_properties, name, value)
            messages.append(message)
            del number
        return await self.call("SendMessage", messages=messages)

    async def receive(
        self,
        topic: str,
        group: str,
        *,
        tag: str = "*",
        kind: FilterType = FilterType.TAG,
        batch: int = 32,
        invisible_ms: int | None = 10_000,
        polling_ms: int = 5_000,
        auto_renew: bool = False,
        attempt_id: str = "",
        timeout: float | None = 25,
    ) -> list[Any]:
        """Return the frames of a receive."""
        asked = make("ReceiveMessageRequest", group=resource(group), batch_size=batch, auto_renew=auto_renew)
        asked.message_queue.topic.name = topic
        asked.filter_expression.type, asked.filter_expression.expression = kind, tag
        if invisible_ms is not None:
            asked.invisible_duration.FromMilliseconds(invisible_ms)
        asked.long_polling_timeout.FromMilliseconds(polling_ms)
        if attempt_id:
            asked.attempt_id = attempt_id
        method = self.channel.unary_stream(f"/{SERVICE}/ReceiveMessage")
        stream = method(asked.SerializeToString(), metadata=self._headers(), timeout=timeout)
        return [parse("ReceiveMessageResponse", data) async for data in stream]

    async def messages(self, topic: str, group: str, **how: Any) -> list[Any]:
        """Return the messages of a receive; none if it found none."""
        return [
            frame.message for frame in await self.receive(topic, group, **how) if frame.HasField("message")
        ]

    async def ack(self, topic: str, group: str, *messages: Any) -> Any:
        entries = [
            make(
                "AckMessageEntry",
                message_id=message.system_properties.message_id,
                receipt_handle=message.system_properties.receipt_handle,
            )
            for message in messages
        ]
        return await self.call("AckMessage", group=resource(group), topic=resource(topic), entries=entries)

    async def change(self, topic: str, group: str, message: Any, invisible_ms: int) -> Any:
        asked = make(
            "ChangeInvisibleDurationRequest",
            group=resource(group),
            topic=resource(topic),
            receipt_handle=message.system_properties.receipt_handle,
            message_id=message.system_properties.message_id,
        )
        asked.invisible_duration.FromMilliseconds(invisible_ms)
        method = self.channel.unary_unary(f"/{SERVICE}/ChangeInvisibleDuration")
        data = await method(asked.SerializeToString(), metadata=self._headers(), timeout=10)
        return parse("ChangeInvisibleDurationResponse", data)

    def telemetry(self) -> TelemetryStream:
        method = self.channel.stream_stream(f"/{SERVICE}/Telemetry")
        return TelemetryStream(method(metadata=self._headers()))


class TelemetryStream:
    """The Telemetry stream of a client."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    async def say(self, **command: Any) -> None:
        await self.stream.write(make("TelemetryCommand", **command).SerializeToString())

    async def hear(self) -> Any:
        data = await asyncio.wait_for(self.stream.read(), 10)
        return data if data is grpc.aio.EOF else parse("TelemetryCommand", data)

    async def settle(self, settings: Any) -> Any:
        """Announce settings and return the answer."""
        await self.say(settings=settings)
        return await self.hear()

    def close(self) -> None:
        self.stream.cancel()


def producer_settings(*topics: str) -> Any:
    settings = make("Settings", client_type=ClientType.PRODUCER)
    settings.publishing.SetInParent()
    settings.publishing.topics.extend(map(resource, topics))
    return settings


def consumer_settings(
    group: str, topic: str, *, tag: str = "*", kind: ClientType = ClientType.PUSH_CONSUMER
) -> Any:
    settings = make("Settings", client_type=kind)
    settings.subscription.group.name = group
    entry = settings.subscription.subscriptions.add(topic=resource(topic))
    entry.expression.type, entry.expression.expression = FilterType.TAG, tag
    return settings


@dataclass
class Served:
    """A broker with its gRPC port."""

    running: RunningBroker
    channel: grpc.aio.Channel

    @property
    def broker(self) -> Broker:
        return self.running.broker

    def client(self, **how: Any) -> GrpcClient:
        return GrpcClient(self.channel, **how)

    async def topic(self, name: str, kind: str = "NORMAL", *, queues: int = 4) -> str:
        await self.running.create_topic(
            name, queues=queues, attributes=f"+message.type={kind}" if kind else ""
        )
        return name


@asynccontextmanager
async def grpc_port(running: RunningBroker) -> AsyncIterator[Served]:
    """Connect to a running broker's gRPC port."""
    options = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(running.broker.grpc_address, options=options) as channel:
        yield Served(running, channel)


@asynccontextmanager
async def grpc_broker(**options: Any) -> AsyncIterator[Served]:
    """Run a broker with a gRPC port."""
    async with running_broker(grpcListen="127.0.0.1:0", **options) as running, grpc_port(running) as served:
        yield served


def ok(response: Any) -> Any:
    assert response.status.code == Code.OK, response
    return response
