"""Send ten orders, then consume the paid ones.

Run a broker (`kerolox up`), then:  python examples/quickstart.py
Another name server than 127.0.0.1:9876 is given by the variable NAMESRV_ADDR.
"""

from __future__ import annotations

import asyncio
import os

from kerolox import Message, Producer, PushConsumer, PushOptions, Received

NAMESERVER = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


async def main() -> None:
    async with Producer(NAMESERVER, group="shop") as producer:
        for number in range(10):
            tag = "paid" if number % 2 else "open"
            message = Message("orders", f"order {number}", tags=tag, keys=[f"o-{number}"])
            receipt = await producer.send(message)
            print(f"sent order {number}: queue {receipt.queue.queue_id}, offset {receipt.queue_offset}")

    done = asyncio.Event()
    paid: list[str] = []

    # A new group starts at the end of its topics, unless it is told to start at the first message.
    async with PushConsumer(NAMESERVER, group="billing", options=PushOptions(start="first")) as consumer:

        @consumer.on("orders", tags="paid")
        async def bill(message: Received) -> None:
            print(f"billing {message.text} ({' '.join(message.keys)})")
            paid.append(message.text)
            if len(paid) == 5:
                done.set()

        await done.wait()  # a service would `await consumer.wait_closed()`


if __name__ == "__main__":
    asyncio.run(main())
