"""A follower acts for its leader while that is away, and hands everything back when it returns."""

from __future__ import annotations

import asyncio
from pathlib import Path

from kerolox.clock import SYSTEM_CLOCK

from .acting_kit import company, until
from .transaction_kit import COMMIT, TOPIC, Producer

KEY = {"UNIQ_KEY": "7F000001162E18B4AAC28E2F6D2A0001"}
NUMBERS = [b"%d" % number for number in range(5)]


async def test_what_is_due_goes_to_another_leader_once_and_the_rest_is_handed_back(tmp_path: Path) -> None:
    async with company(tmp_path, delay_levels="3s 60s") as c:
        for topic in ("delayed", "timed", "later", "far", TOPIC):
            for running in (c.leader, c.other):
                await running.create_topic(topic, queues=1)
        payer = Producer(c.leader)
        await payer.come()
        for number in NUMBERS:
            await c.send("delayed", number, {**KEY, "DELAY": "1"})
            await c.send("later", number, {**KEY, "DELAY": "2"})
            await c.send("timed", number, {**KEY, "TIMER_DELAY_MS": "3000"})
            await c.send("far", number, {**KEY, "TIMER_DELAY_MS": "60000"})
        born_ms = SYSTEM_CLOCK.wall_ms()
        ended = await payer.prepare(b"ended", KEY, born_timestamp=born_ms)
        await payer.end(ended)
        for number in NUMBERS:
            await payer.prepare(number, KEY, born_timestamp=born_ms)
        await c.copied()
        await c.leader.stop()
        await c.acts()
        producer = Producer(c.other)
        producer.outcome = COMMIT
        await producer.come()
        there = c.other.broker.store
        for topic in ("delayed", "timed", TOPIC):
            await until(lambda topic=topic: there.max_offset(topic, 0) == 5, lambda topic=topic: topic)
            assert await c.bodies(c.other, topic) == NUMBERS
        assert c.follower.broker.store.max_offset("delayed", 0) <= 0
        await c.leader.start()
        assert c.leader.broker.leadership.leads
        assert not c.follower.broker.leadership.acts
        home = c.leader.broker
        # Far ahead: what was to come then waits at home, and all the rest is over.
        assert home.later.timers.files.wheel.waiting == 5
        assert home.tables.delay_offsets.offsets[1] == 5
        assert home.transactions.finished.pending == 0
        await asyncio.sleep(1)
        for topic in ("delayed", "timed"):
            assert home.store.max_offset(topic, 0) <= 0
        assert await c.bodies(c.leader, TOPIC) == [b"ended"]
        for topic in ("delayed", "timed", TOPIC):
            assert await c.bodies(c.other, topic) == NUMBERS
        await payer.dialer.close()
        await producer.dialer.close()
