"""The steps of each order, consumed in the order they were sent in.

Messages with equal `order_key` lie in one queue; an ordered consumer handles each queue one message at a
time, and one that fails holds up those behind it until it succeeds.

Run a broker (`kerolox up`), then:  python examples/ordered.py
"""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict

from kerolox import Message, Producer, PushConsumer, PushOptions, Received, Suspend

NAMESERVER = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
STEPS = ["placed", "paid", "packed", "sent"]
ORDERS = [f"o-{number}" for number in range(5)]


async def main() -> None:
    async with Producer(NAMESERVER, group="shop") as producer:
        for step in STEPS:
            for order in ORDERS:
                await producer.send(Message("order-steps", step, keys=order), order_key=order)

    seen: dict[str, list[str]] = defaultdict(list)
    done = asyncio.Event()
    failed_once = False

    options = PushOptions(ordered=True, start="first")
    async with PushConsumer(NAMESERVER, group="warehouse", options=options) as consumer:

        @consumer.on("order-steps")
        async def handle(message: Received) -> None:
            nonlocal failed_once
            order = message.keys[0]
            if message.text == "packed" and order == "o-3" and not failed_once:
                failed_once = True
                raise Suspend(0.1, "out of boxes")  # this very message again, in 0.1 seconds
            seen[order].append(message.text)
            if sum(map(len, seen.values())) == len(STEPS) * len(ORDERS):
                done.set()

        await done.wait()

    for order in ORDERS:
        print(f"{order}: {' → '.join(seen[order])}")
        assert seen[order] == STEPS


if __name__ == "__main__":
    asyncio.run(main())
