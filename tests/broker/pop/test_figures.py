"""What operators see of groups that pop: lag, messages in flight, metrics."""

from __future__ import annotations

import asyncio

from kerolox.protocol.bodies.body import MessageQueue
from kerolox.protocol.bodies.stats import ConsumeStats
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.headers.group import ConsumeStatsRequest
from kerolox.testing.clock import ManualClock
from tests.broker.pop.kit import GROUP, TOPIC, Popper, advance_until, committed
from tests.broker.pop.test_pops import poppers


async def progress(one: Popper) -> tuple[int, int, int]:
    """Return the ends of consumer, pull and queue, as mqadmin consumerProgress gets them."""
    header = ConsumeStatsRequest(consumer_group=GROUP, topic=TOPIC)
    answer = await one.dialer.call(one.address, RequestCode.GET_CONSUME_STATS, header)
    table = ConsumeStats.decode(answer.body).offset_table
    row = table[MessageQueue(TOPIC, "broker-a", 0)]
    return row.consumer_offset, row.pull_offset, row.broker_offset


async def metrics(one: Popper) -> str:
    return (await one.running.broker.figures.metrics.metrics()).text


async def test_messages_that_are_out_are_in_flight() -> None:
    clock = ManualClock()
    async with poppers(clock=clock) as one:
        for number in range(5):
            await one.send(TOPIC, b"%d" % number)
        found = await one.take(max_msg_nums=3)
        assert await progress(one) == (0, 3, 5)
        await advance_until(clock, lambda: committed(one.running) == 3)  # stored: the group has moved on
        assert await progress(one) == (0, 3, 5)
        page = await metrics(one)
        labels = f'consumer_group="{GROUP}"'
        lines = [line for line in page.splitlines() if labels in line and f'topic="{TOPIC}"' in line]
        values = {line.partition("{")[0]: line.rpartition(" ")[2] for line in lines}
        assert values["rocketmq_consumer_lag_messages"] == "5"
        assert values["rocketmq_consumer_inflight_messages"] == "3"
        assert values["rocketmq_consumer_ready_messages"] == "2"
        assert "kerolox_pop_checkpoints" in page
        for message in found:
            await one.ack(message)
        assert await progress(one) == (3, 3, 5)


async def test_tools_find_a_group_that_only_pops() -> None:
    """They ask for the route of its retry topic."""
    async with poppers() as one:
        await one.take()
        for _ in range(100):
            if await one.route(f"%RETRY%{GROUP}") is not None:
                break
            await asyncio.sleep(0.05)
        else:
            raise AssertionError("the retry topic of the group was not registered")
