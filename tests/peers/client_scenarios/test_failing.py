"""One of two brokers is killed and comes back while Python sends: nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from kerolox import Message, Producer, ProducerOptions
from kerolox.errors import KeroloxError
from tests.client.kit import stored, wait_for

from .conftest import Target

Unique = Callable[[str], str]
TIMEOUT_S = 3.0
GRACE_S = 1.5  # a machine that starts a JVM besides


async def test_a_broker_is_killed_and_comes_back(target: Target, unique: Unique) -> None:
    fragile = await asyncio.to_thread(target.cluster.new_broker, "broker-mortal", cluster="MortalCluster")
    topic = await target.create_topic(unique("topic"), 2)
    await target.create_topic(topic, 2, broker=fragile)
    acknowledged: dict[str, bytes] = {}
    by_broker: Counter[str] = Counter()
    ended = False
    longest_s = 0.0
    loop = asyncio.get_running_loop()
    options = ProducerOptions(timeout_s=TIMEOUT_S, try_timeout_s=1.0)
    async with Producer(target.nameserver, group=unique("pid"), options=options) as producer:

        async def send(lane: int) -> None:
            nonlocal longest_s
            number = 0
            while not ended:
                body = b"%d:%d" % (lane, number)
                number += 1
                began_s = loop.time()
                try:
                    receipt = await producer.send(Message(topic, body))
                    acknowledged[receipt.msg_id] = body
                    by_broker[receipt.queue.broker] += 1
                except KeroloxError:
                    pass  # not acknowledged: may be stored or not
                longest_s = max(longest_s, loop.time() - began_s)
                await asyncio.sleep(0.005)

        lanes = [asyncio.create_task(send(lane)) for lane in range(8)]
        await wait_for(lambda: min(by_broker["broker-a"], by_broker["broker-mortal"]) > 50, 60)
        await asyncio.to_thread(fragile.kill)
        alone = by_broker["broker-a"]
        await wait_for(lambda: by_broker["broker-a"] > alone + 200, 60)
        await asyncio.to_thread(fragile.start)
        again = by_broker["broker-mortal"]
        await producer.client.refresh_routes()

        async def until_used() -> None:
            async with asyncio.timeout(90):
                while by_broker["broker-mortal"] <= again + 50:
                    await producer.client.refresh_routes()
                    await asyncio.sleep(0.5)

        await until_used()
        ended = True
        await asyncio.gather(*lanes)
    assert longest_s < TIMEOUT_S + GRACE_S
    found = {message.msg_id: message.body for message in await stored(target.nameserver, topic)}
    lost = {key for key, body in acknowledged.items() if found.get(key) != body}
    assert not lost, f"{len(lost)} of {len(acknowledged)} acknowledged messages are not there"
