"""A story that makes every figure of a broker appear, for ours and Apache's, and what is compared of them."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from kerolox import Message, Producer, PushConsumer, PushOptions, Received, Retry
from kerolox.client.admin.calls import AdminCalls
from kerolox.client.nameservers import NameServers
from kerolox.net.dialer import Dialer
from kerolox.protocol.bodies.groups import GroupConfig
from kerolox.protocol.bodies.topics import TopicConfig
from kerolox.protocol.codes import RequestCode

APACHE = Path(__file__).parent / "apache_metrics.json"
TOPIC, GROUP = "bills", "billing"
SETTINGS = {"messageDelayLevel": "1s 1s 1s 1s", "transactionCheckInterval": 1000, "transactionTimeOut": 1000}

# name → what kind it is, its label names, and the bounds of a histogram
Shapes = dict[str, dict[str, Any]]


def shapes(text: str) -> Shapes:
    """What a dashboard relies on. The order of series and labels is no part of it."""
    found: Shapes = {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            found[name] = {"kind": kind, "labels": [], "bounds": []}
        elif "{" in line and not line.startswith("#"):
            name, _, rest = line.partition("{")
            base = name if name in found else re.sub("_(bucket|count|sum)$", "", name)
            labels = dict(re.findall(r'([a-z_]+)="((?:[^"\\]|\\.)*)"', rest.rpartition("}")[0]))
            bound = labels.pop("le", None)
            if bound is not None and bound not in found[base]["bounds"]:
                found[base]["bounds"].append(bound)
            if sorted(labels) not in found[base]["labels"]:
                found[base]["labels"].append(sorted(labels))
    return found


async def fetch(port: int) -> str:
    def get() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            return str(answer.read().decode())

    return await asyncio.to_thread(get)


async def story(nameserver: str, broker: str, port: int) -> str:
    """Messages of all kinds are sent, consumed, given back and given up; then the page is read."""
    async with Dialer() as dialer:
        admin = AdminCalls(NameServers([nameserver], dialer), dialer)
        topic = TopicConfig(topic_name=TOPIC, read_queue_nums=2, write_queue_nums=2, perm=6)
        await admin.put_topic(broker, topic)
        await admin.put_group(broker, GroupConfig(group_name=GROUP))
        await until(lambda: _knows(admin))
        assert (await dialer.call(broker, RequestCode.GET_TOPIC_CONFIG, None)).code != 0  # a refusal, too
    seen: list[str] = []

    async def handle(message: Received) -> None:
        seen.append(message.text)
        if message.text == "bad":
            raise Retry("never", level=1)

    async with (
        Producer(nameserver, group="shop") as producer,
        PushConsumer(nameserver, group=GROUP, options=PushOptions(start="first", attempts_max=1)) as consumer,
    ):
        consumer.on(TOPIC)(handle)
        await producer.send(Message(TOPIC, b"plain"))
        await producer.send(Message(TOPIC, b"bad"))
        await producer.send(Message(TOPIC, b"ordered"), order_key="k")
        await producer.send(Message(TOPIC, b"x" * 5000))
        await producer.send(Message(TOPIC, b"level", delay_level=1))
        await producer.send(Message(TOPIC, b"timed", delay=2))
        await producer.send(Message(TOPIC, b"waits", delay=3600))
        await producer.send_batch([Message(TOPIC, b"batch") for _ in range(3)])
        async with producer.transaction(Message(TOPIC, b"committed")):
            pass
        async with producer.transaction(Message(TOPIC, b"dropped")) as transaction:
            await transaction.rollback()
        wanted = {"plain", "bad", "ordered", "level", "timed", "batch", "committed"}
        await until(lambda: wanted <= set(seen) and seen.count("bad") >= 2)

        async def complete() -> bool:
            text = await fetch(port)
            return all(name in text for name in ("rocketmq_send_to_dlq_messages_total{", "_dequeue_total{"))

        await until(complete)
        return await fetch(port)


async def _knows(admin: AdminCalls) -> bool:
    try:
        return bool(await admin.queues(TOPIC))
    except Exception:
        return False


async def until(condition: Callable[[], bool | Awaitable[bool]], timeout_s: float = 60) -> None:
    async with asyncio.timeout(timeout_s):
        while True:
            met = condition()
            if met if isinstance(met, bool) else await met:
                return
            await asyncio.sleep(0.1)


# What only a broker that hands out single messages (POP) has, and what the library of Apache's adds.
NOT_COMPARED = re.compile("rocketmq_pop_.*|target_info")


def apache_shapes() -> Shapes:
    """What Apache's broker 5.5.0 told when the story was told to it."""
    return dict(json.loads(APACHE.read_text()))


def compared(found: Shapes) -> Shapes:
    return {name: shape for name, shape in found.items() if not NOT_COMPARED.fullmatch(name)}


def without_ours(found: Shapes) -> Shapes:
    return {name: shape for name, shape in found.items() if name.startswith("rocketmq_")}
