"""Saving progress at the brokers: a broker heeds it in the order in which it was reached."""

import asyncio

import pytest

from kerolox.client.consume.offset_keeping import BrokerOffsets
from kerolox.client.messages import Queue
from kerolox.errors import KeroloxError

FIRST, SECOND = Queue("orders", "broker-a", 0), Queue("orders", "broker-b", 0)


class Slow:
    """Brokers that answer when they are told to, and may say no."""

    def __init__(self) -> None:
        self.begun: list[tuple[Queue, int]] = []
        self.answers: list[asyncio.Future[None]] = []

    async def save_offset(self, queue: Queue, offset: int) -> None:
        self.begun.append((queue, offset))
        self.answers.append(asyncio.get_running_loop().create_future())
        await self.answers[-1]


async def turns() -> None:
    """Let everything run that can."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_broker_gets_the_next_saving_after_its_answer() -> None:
    brokers = Slow()
    keeping = BrokerOffsets(brokers, zero_if_young=False)  # type: ignore[arg-type]
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(keeping.save({FIRST: 1, SECOND: 1}))
        later = tasks.create_task(keeping.save({FIRST: 2}))
        await turns()
        assert brokers.begun == [(FIRST, 1), (SECOND, 1)]

        brokers.answers[1].set_result(None)  # another broker's answer changes nothing
        await turns()
        assert len(brokers.begun) == 2

        brokers.answers[0].set_result(None)
        await turns()
        assert brokers.begun[2:] == [(FIRST, 2)]
        assert not later.done()
        brokers.answers[2].set_result(None)
    assert later.result() == {}


async def test_a_saving_that_failed_does_not_hold_up_the_next() -> None:
    brokers = Slow()
    keeping = BrokerOffsets(brokers, zero_if_young=False)  # type: ignore[arg-type]
    async with asyncio.TaskGroup() as tasks:
        refused = tasks.create_task(keeping.save({FIRST: 1, SECOND: 1}))
        await turns()
        error = KeroloxError("no answer within 3 s")
        brokers.answers[0].set_exception(error)
        brokers.answers[1].set_result(None)
        await turns()
        assert refused.result() == {FIRST: error}

        given_up = tasks.create_task(keeping.save({FIRST: 2}))
        await turns()
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        later = tasks.create_task(keeping.save({FIRST: 3}))
        await turns()
        assert brokers.begun[-1] == (FIRST, 3)
        brokers.answers[-1].set_result(None)
    assert later.result() == {}
