"""Messages that are delivered later: after a delay level, after seconds, at a time; and one taken back.

Run a broker that lets messages be taken back (`kerolox up --set recallMessageEnable=true`), then:

    python examples/delay.py
"""

from __future__ import annotations

import asyncio
import os
import time
from datetime import UTC, datetime, timedelta

from kerolox import Message, Producer, PushConsumer, PushOptions, Received

NAMESERVER = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


async def main() -> None:
    began = time.monotonic()
    async with Producer(NAMESERVER, group="shop") as producer:
        await producer.send(Message("reminders", "now"))
        await producer.send(Message("reminders", "level 1", delay_level=1))  # 1 s; 18 levels up to 2 h
        await producer.send(
            Message("reminders", "after 2 s", delay=2)
        )  # any number of seconds, any timedelta
        soon = datetime.now(UTC) + timedelta(seconds=3)
        await producer.send(Message("reminders", "at a time", deliver_at=soon))

        late = await producer.send(Message("reminders", "never", delay=timedelta(minutes=5)))
        assert late.recall_handle is not None  # Apache's brokers before 5.4 give none
        await producer.recall("reminders", late.recall_handle)

    arrived: list[str] = []
    done = asyncio.Event()
    async with PushConsumer(NAMESERVER, group="clock", options=PushOptions(start="first")) as consumer:

        @consumer.on("reminders")
        async def show(message: Received) -> None:
            print(f"{time.monotonic() - began:4.1f} s  {message.text}")
            arrived.append(message.text)
            if len(arrived) == 4:
                done.set()

        await done.wait()
    assert arrived == ["now", "level 1", "after 2 s", "at a time"]


if __name__ == "__main__":
    asyncio.run(main())
