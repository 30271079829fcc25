"""Attacks on the gRPC port: every call, by all who may not make it. Refusals come late: many at once."""

from __future__ import annotations

import asyncio
import hmac
from typing import Any

import grpc.aio

from kerolox.protocol.grpc.messages import SERVICE, Code, make, parse
from kerolox.testing.access import ADMIN

from .requests import Names
from .world import NOBODY, PASSWORD, SECRET, VICTIM

NAME = "gRPC port"
DATE = "20261115T194301Z"
HEARD_S = 30.0
AT_ONCE = 16  # fewer than those whose connection is closed


def signed(user: str, secret: str) -> dict[str, str]:
    signature = hmac.new(secret.encode(), DATE.encode(), "sha1").hexdigest()
    text = f"MQv2-HMAC-SHA1 Credential={user}, SignedHeaders=x-mq-date-time, Signature={signature}"
    return {"x-mq-date-time": DATE, "authorization": text}


ATTACKS: dict[str, dict[str, str]] = {
    "unsigned": {},
    "an access key without a signature": {
        "x-mq-date-time": DATE, "authorization": f"MQv2-HMAC-SHA1 Credential={ADMIN.access_key}",
    },
    "an unknown user": signed("stranger", "x"),
    "a wrong password": signed(ADMIN.access_key, "guessed"),
    "a disabled user": signed("disabled", PASSWORD),
    "replayed with another date": {
        **signed(ADMIN.access_key, ADMIN.secret_key), "x-mq-date-time": "20261115T194302Z",
    },
    "a user without rights": signed("mallory", PASSWORD),
    "rights on another topic": signed("other", PASSWORD),
    "rights on the retry topic": signed("retries", PASSWORD),
    "denied by name": signed("denied", PASSWORD),
    "an address not allowed": signed("elsewhere", PASSWORD),
}  # fmt: skip


def calls(names: Names) -> dict[str, dict[str, Any]]:
    """The requests of all calls about a topic and a group."""
    topic, group = make("Resource", name=names.topic), make("Resource", name=names.group)
    message = make("Message", topic=topic, body=b"forged")
    message.system_properties.message_id = "forged"
    here = make("Endpoints", scheme=1, addresses=[make("Address", host="10.0.0.1", port=8081)])
    handle = f"0 {2**41} {2**41} 0 0 broker-a 0 0 0"
    entry = make("AckMessageEntry", message_id="m", receipt_handle=handle)
    place = {"topic": topic, "group": group, "receipt_handle": handle}
    producer = make("Settings", client_type=1)
    producer.publishing.topics.append(topic)
    consumer = make("Settings", client_type=2)
    consumer.subscription.group.CopyFrom(group)
    consumer.subscription.subscriptions.add(topic=topic)
    receive = make("ReceiveMessageRequest", group=group, auto_renew=True)
    receive.message_queue.topic.CopyFrom(topic)
    return {
        "QueryRoute": {"topic": topic, "endpoints": here},
        "QueryAssignment": {"topic": topic, "group": group, "endpoints": here},
        "Heartbeat": {"group": group, "client_type": 2},
        "NotifyClientTermination": {"group": group},
        "SendMessage": {"messages": [message]},
        "RecallMessage": {"topic": topic, "recall_handle": "x"},
        "EndTransaction": {"topic": topic, "transaction_id": "t", "resolution": 1},
        "ReceiveMessage": {"of": receive},
        "AckMessage": {"topic": topic, "group": group, "entries": [entry]},
        "ChangeInvisibleDuration": place,
        "ForwardMessageToDeadLetterQueue": place,
        "Telemetry of a producer": {"of": make("TelemetryCommand", settings=producer)},
        "Telemetry of a consumer": {"of": make("TelemetryCommand", settings=consumer)},
    }


async def answered(
    channel: grpc.aio.Channel, attack: str, call: str, request: dict[str, Any]
) -> tuple[int, bytes]:
    """Return the code of an answer, and all of it."""
    name = call.partition(" ")[0]
    headers = [("x-mq-client-id", "attacker"), *ATTACKS[attack].items()]
    path = f"/{SERVICE}/{name}"
    data = request["of"] if "of" in request else make(f"{name}Request", **request)
    if name == "Telemetry":
        stream = channel.stream_stream(path)(metadata=headers, timeout=HEARD_S)
        await stream.write(data.SerializeToString())
        found = await stream.read()
        stream.cancel()
        return parse("TelemetryCommand", found).status.code, found
    if name == "ReceiveMessage":
        frames = [
            frame
            async for frame in channel.unary_stream(path)(
                data.SerializeToString(), metadata=headers, timeout=HEARD_S
            )
        ]
        return parse("ReceiveMessageResponse", frames[0]).status.code, b"".join(frames)
    found = await channel.unary_unary(path)(data.SerializeToString(), metadata=headers, timeout=HEARD_S)
    return parse(f"{name}Response", found).status.code, found


async def attack_all(address: str) -> tuple[int, list[str]]:
    """How many attempts, and what was wrong with them."""
    turn, count, wrong = asyncio.Semaphore(AT_ONCE), 0, []
    there, missing = calls(VICTIM), calls(NOBODY)
    async with grpc.aio.insecure_channel(address) as channel:

        async def attempt(attack: str, call: str) -> None:
            async with turn:
                answers = [await answered(channel, attack, call, of[call]) for of in (there, missing)]
            where = f"{NAME}: {attack}: {call}"
            for code, data in answers:
                if code != Code.UNAUTHORIZED:
                    wrong.append(f"{where}: answered with {code}")
                if SECRET in data:
                    wrong.append(f"{where}: shows the message")

        attempts = [attempt(attack, call) for attack in ATTACKS for call in there]
        count = 2 * len(attempts)
        await asyncio.gather(*attempts)
    return count, wrong
