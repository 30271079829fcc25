"""Transactions, end to end: what is delivered, what is not, and what a broker is told when it asks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kerolox import Message, Producer, Received, TransactionState
from kerolox.client.errors import InvalidMessage
from kerolox.client.send.transactions import verdict
from kerolox.errors import Closed, KeroloxError
from kerolox.testing.broker import RunningBroker, running_broker
from tests.client.kit import create, stored, wait_for

# Asks about open transactions soon and often.
EAGER = {"transaction_timeout_ms": 100, "transaction_check_ms": 100}


@pytest.fixture
async def running() -> AsyncIterator[RunningBroker]:
    async with running_broker(**EAGER) as running:
        await create(running, "orders", 1)
        yield running


async def bodies(running: RunningBroker) -> list[bytes]:
    return [message.body for message in await stored(running.nameserver_address, "orders")]


async def wait_for_bodies(running: RunningBroker, expected: list[bytes]) -> None:
    async with asyncio.timeout(10):
        while await bodies(running) != expected:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_leaving_the_block_commits(running: RunningBroker) -> None:
    async with Producer(running.nameserver_address, group="shop") as producer:
        async with producer.transaction(Message("orders", b"a", tags="paid", keys="k")) as transaction:
            assert await bodies(running) == []
            assert transaction.id == transaction.receipt.msg_id
        assert transaction.state is TransactionState.COMMIT
        await wait_for_bodies(running, [b"a"])
        (found,) = await stored(running.nameserver_address, "orders")
        assert found.msg_id == transaction.id
        assert (found.tags, found.keys) == ("paid", ("k",))


async def test_an_order_key_ties_transactions_to_a_queue(running: RunningBroker) -> None:
    await create(running, "many", 8)
    async with Producer(running.nameserver_address, group="shop") as producer:
        for number in range(10):
            async with producer.transaction(Message("many", str(number)), order_key="o-17"):
                pass
        async with asyncio.timeout(10):
            while len(found := await stored(running.nameserver_address, "many")) < 10:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    assert len({message.queue_id for message in found}) == 1
    assert [message.text for message in found] == [str(number) for number in range(10)]
    assert {message.get("__SHARDINGKEY") for message in found} == {"o-17"}


async def test_an_exception_rolls_back(running: RunningBroker) -> None:
    async with Producer(running.nameserver_address, group="shop") as producer:
        with pytest.raises(ZeroDivisionError):
            async with producer.transaction(Message("orders", b"a")) as transaction:
                raise ZeroDivisionError
        assert transaction.state is TransactionState.ROLLBACK
        async with producer.transaction(Message("orders", b"b")) as transaction:
            await transaction.rollback()
        async with producer.transaction(Message("orders", b"c")) as transaction:
            await transaction.commit()
            with pytest.raises(KeroloxError, match="ended already"):
                await transaction.rollback()
        await wait_for_bodies(running, [b"c"])


async def test_cancelled_rolls_back(running: RunningBroker) -> None:
    async with Producer(running.nameserver_address, group="shop") as producer:
        began = asyncio.Event()

        async def work() -> None:
            async with producer.transaction(Message("orders", b"a")):
                began.set()
                await asyncio.sleep(60)

        task = asyncio.create_task(work())
        await began.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        async with producer.transaction(Message("orders", b"b")):
            pass
        await wait_for_bodies(running, [b"b"])


async def test_a_broker_asks_and_check_answers(running: RunningBroker) -> None:
    asked: list[Received] = []

    def check(message: Received) -> bool | None:
        asked.append(message)
        if len(asked) < 2:
            return None
        return message.body == b"yes"

    async with Producer(running.nameserver_address, group="shop", check=check) as producer:
        async with producer.transaction(Message("orders", b"yes", tags="paid")) as transaction:
            await transaction.leave_open()
        await wait_for_bodies(running, [b"yes"])
        assert len(asked) >= 2
        assert {message.msg_id for message in asked} == {transaction.id}
        assert (asked[0].topic, asked[0].tags, asked[0].broker) == ("orders", "paid", "broker-a")


async def test_a_check_is_answered_after_a_restart(running: RunningBroker) -> None:
    """The new producer has sent nothing, and the broker still finds it."""
    async with (
        Producer(running.nameserver_address, group="shop") as producer,
        producer.transaction(Message("orders", b"a")) as transaction,
    ):
        await transaction.leave_open()

    async def check(message: Received) -> TransactionState:
        assert message.msg_id == transaction.id
        return TransactionState.COMMIT

    async with Producer(running.nameserver_address, group="shop", check=check):
        await wait_for_bodies(running, [b"a"])


async def test_what_is_remembered_needs_no_check(running: RunningBroker) -> None:
    """The end got lost on the way: the producer knows it still."""
    async with Producer(running.nameserver_address, group="shop") as producer:
        async with producer.transaction(Message("orders", b"a")) as transaction:
            peer = producer.client.ready_peer(running.address)
            assert peer is not None
            peer.tell = lambda *args, **more: None  # type: ignore[method-assign]
        assert transaction.state is TransactionState.COMMIT
        del peer.tell  # type: ignore[attr-defined]
        assert await bodies(running) == []
        await wait_for_bodies(running, [b"a"])


async def test_a_listener_executes_and_checks(running: RunningBroker) -> None:
    class Listener:
        checked = 0

        def execute(self, message: Message, arg: Any) -> bool | None:
            if arg == "raise":
                raise ZeroDivisionError
            return arg  # type: ignore[no-any-return]

        def check(self, message: Received) -> bool:
            self.checked += 1
            return message.body == b"later"

    listener = Listener()
    async with Producer(running.nameserver_address, group="shop", listener=listener) as producer:
        receipt, state = await producer.send_in_transaction(Message("orders", b"now"), True)
        assert (receipt.ok, state) == (True, TransactionState.COMMIT)
        await wait_for_bodies(running, [b"now"])
        assert (await producer.send_in_transaction(Message("orders", b"never"), False))[1] == 12
        assert (await producer.send_in_transaction(Message("orders", b"no"), "raise"))[1] == 0
        assert (await producer.send_in_transaction(Message("orders", b"later"), None))[1] == 0
        await wait_for_bodies(running, [b"now", b"later"])
        await wait_for(lambda: listener.checked >= 2)
    async with Producer(running.nameserver_address, group="shop") as producer:
        with pytest.raises(Closed, match="no listener"):
            await producer.send_in_transaction(Message("orders", b"x"))


async def test_the_broker_restarts_in_between(tmp_path: Path) -> None:
    async with running_broker(directory=tmp_path, **EAGER) as running:
        await create(running, "orders", 1)
        async with (
            Producer(running.nameserver_address, group="shop") as producer,
            producer.transaction(Message("orders", b"a")) as transaction,
        ):
            await transaction.leave_open()
    async with (
        running_broker(directory=tmp_path, **EAGER) as running,
        Producer(running.nameserver_address, group="shop", check=lambda message: True),
    ):
        await wait_for_bodies(running, [b"a"])


async def test_no_delay_in_a_transaction(running: RunningBroker) -> None:
    async with Producer(running.nameserver_address, group="shop") as producer:
        with pytest.raises(InvalidMessage, match="delayed"):
            async with producer.transaction(Message("orders", b"a", delay_level=1)):
                pass


async def test_what_a_verdict_may_be() -> None:
    async def said(value: object) -> object:
        return value

    for value, state in ((True, 8), (False, 12), (None, 0), (TransactionState.COMMIT, 8), (12, 12)):
        assert await verdict(lambda value=value: value) == state
        assert await verdict(said, value) == state
        assert await verdict(lambda value=value: said(value)) == state
