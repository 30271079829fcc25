"""A message that is delivered if, and only if, a database transaction commits.

The message is stored first, unseen. Then the local work is done; when the block ends the message is
delivered, when it raises it is dropped. If this process dies in between, the broker asks a producer of the
group how it ended: `check` looks into the database.

Run a broker (`kerolox up`), then:  python examples/transaction.py
"""

from __future__ import annotations

import asyncio
import os
import sqlite3

from kerolox import Message, Producer, PullConsumer, PullOptions, Received

NAMESERVER = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")

database = sqlite3.connect(":memory:", check_same_thread=False)
database.execute("CREATE TABLE orders (id TEXT PRIMARY KEY, amount INTEGER CHECK (amount > 0))")


async def check(message: Received) -> bool | None:
    """Asked by the broker when it did not hear the end: True, False, or None (not known yet)."""
    found = database.execute("SELECT 1 FROM orders WHERE id = ?", (message.keys[0],)).fetchone()
    return found is not None


async def place(producer: Producer, order: str, amount: int) -> None:
    async with producer.transaction(Message("placed-orders", f"{order} {amount}", keys=order)):
        with database:  # an exception rolls back both
            database.execute("INSERT INTO orders VALUES (?, ?)", (order, amount))


async def main() -> None:
    async with Producer(NAMESERVER, group="shop", check=check) as producer:
        await place(producer, "o-1", 100)
        try:
            await place(producer, "o-2", -5)
        except sqlite3.IntegrityError as error:
            print(f"o-2 not placed: {error}")
        await place(producer, "o-3", 70)

    placed: list[str] = []
    options = PullOptions(start="first")
    async with PullConsumer(
        NAMESERVER, group="ledger", topics=["placed-orders"], options=options
    ) as consumer:
        while len(placed) < 2:
            batch = await consumer.poll(timeout_s=5)
            placed += [message.text for message in batch or ()]
    print(f"delivered: {', '.join(sorted(placed))}")
    assert sorted(placed) == ["o-1 100", "o-3 70"]


if __name__ == "__main__":
    asyncio.run(main())
