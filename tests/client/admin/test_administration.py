"""kerolox.Admin and its blocking twin against a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kerolox import (
    Admin,
    AlreadyThere,
    ClientOptions,
    Closed,
    DeadLetter,
    FoundMessages,
    Message,
    NotFound,
    OffsetGone,
    OptionError,
    OtherLoop,
    Producer,
    PushConsumer,
    PushOptions,
    Queue,
    Received,
    RequestFailed,
    ResendStopped,
    TopicNotFound,
    blocking,
)
from kerolox.testing import BrokerThread, broker_in_thread
from kerolox.testing.broker import RunningBroker, running_broker
from tests.client.kit import wait_for

FIRST = PushOptions(start="first")


@pytest.fixture
async def running() -> AsyncIterator[RunningBroker]:
    async with running_broker() as running:
        yield running


@pytest.fixture
async def admin(running: RunningBroker) -> AsyncIterator[Admin]:
    async with Admin(running.nameserver_address) as admin:
        yield admin


async def send(running: RunningBroker, topic: str, *bodies: str, **fields: Any) -> list[Queue]:
    async with Producer(running.nameserver_address, group="shop") as producer:
        return [(await producer.send(Message(topic, body, **fields))).queue for body in bodies]


async def consume(running: RunningBroker, topic: str, count: int, group: str = "billing") -> None:
    """Consume so many messages, and leave."""
    seen: list[Received] = []
    async with PushConsumer(running.nameserver_address, group=group, options=FIRST) as consumer:
        consumer.subscribe(topic, seen.append)
        await wait_for(lambda: len(seen) == count)


# --- topics ---------------------------------------------------------------------------------------------


async def test_topics(running: RunningBroker, admin: Admin) -> None:
    made = await admin.create_topic("orders", queues=4, attributes={"message.type": "FIFO"})
    assert (made.name, made.queues, made.brokers[0].broker) == ("orders", 4, "broker-a")
    assert await admin.describe_topic("orders") == made
    assert made.brokers[0].attributes == {"message.type": "FIFO"}
    with pytest.raises(AlreadyThere, match=r"orders exists at broker-a\. Change it with"):
        await admin.create_topic("orders")
    changed = await admin.update_topic("orders", queues=8, perm=4, attributes={"message.type": None})
    (at,) = changed.brokers
    assert (at.write_queues, at.read_queues, at.readable, at.writable) == (8, 8, True, False)
    assert at.attributes == {}
    assert await admin.describe_topic("orders") == changed
    assert await admin.list_topics() == ["orders"]
    assert "TBW102" in await admin.list_topics(system=True)
    assert await admin.delete_topic("orders") == ["broker-a"]
    assert await admin.list_topics() == []


async def test_topic_stats_and_groups(running: RunningBroker, admin: Admin) -> None:
    await admin.create_topic("orders", queues=2)
    before = datetime.now(UTC) - timedelta(seconds=1)
    await send(running, "orders", "a", "b", "c")
    stats = await admin.topic_stats("orders")
    assert [one.queue for one in stats] == [Queue("orders", "broker-a", number) for number in range(2)]
    assert sum(one.messages for one in stats) == 3
    newest = max(one.stored_at for one in stats if one.stored_at is not None)
    assert before < newest < datetime.now(UTC) + timedelta(seconds=1)
    await consume(running, "orders", 3)
    (group,) = await admin.topic_groups("orders")
    assert (group.group, group.members, group.lag) == ("billing", 0, 0)


@pytest.mark.parametrize(
    "ask",
    [
        lambda admin: admin.describe_topic("oders"),
        lambda admin: admin.topic_stats("oders"),
        lambda admin: admin.topic_groups("oders"),
        lambda admin: admin.update_topic("oders", queues=2),
        lambda admin: admin.delete_topic("oders"),
        lambda admin: admin.create_topic("new", cluster="nowhere"),
        lambda admin: admin.create_topic("new", broker="nobody"),
        lambda admin: admin.describe_group("biling"),
        lambda admin: admin.update_group("biling", retries=1),
        lambda admin: admin.delete_group("biling"),
        lambda admin: admin.group_members("biling"),
        lambda admin: admin.group_lag("biling"),
        lambda admin: admin.group_lag("billing", "oders"),
        lambda admin: admin.reset_offsets("biling", "orders", "end"),
        lambda admin: admin.reset_offsets("billing", "oders", "end"),
        lambda admin: admin.reset_offsets("billing", "oders", "end", preview=True),
        lambda admin: admin.set_offsets("biling", {Queue("orders", "broker-a", 0): 1}),
        lambda admin: admin.set_offsets("billing", {Queue("orders", "broker-x", 0): 1}),
        lambda admin: admin.find_message("no id"),
        lambda admin: admin.find_message("no id", "orders"),
        lambda admin: admin.find_messages("oders"),
        lambda admin: admin.find_messages("orders", key="nothing"),
        lambda admin: admin.read_message(Queue("orders", "broker-a", 99), 0),
        lambda admin: admin.find_dead_letters("biling"),
        lambda admin: admin.find_dead_letters("billing", key="nothing"),
        lambda admin: admin.resend_dead_letters("biling"),
    ],
)
async def test_a_look_up_that_finds_nothing_raises(
    running: RunningBroker, admin: Admin, ask: Callable[[Admin], Any]
) -> None:
    await admin.create_topic("orders", queues=1)
    await admin.create_group("billing")
    with pytest.raises(NotFound) as told:
        await ask(admin)
    assert str(told.value)


async def test_an_unknown_topic_is_the_error_of_producers(admin: Admin) -> None:
    await admin.create_topic("orders")
    with pytest.raises(TopicNotFound) as told:
        await admin.topic_stats("oders")
    assert told.value.topic == "oders"
    assert str(told.value).endswith("Did you mean orders?")
    assert "kerolox topic create oders" in told.value.next_step


# --- groups and offsets ---------------------------------------------------------------------------------


async def test_groups(running: RunningBroker, admin: Admin) -> None:
    made = await admin.create_group("billing", retries=3, ordered=True)
    assert await admin.describe_group("billing") == made
    assert (made.brokers[0].retries, made.brokers[0].ordered, made.brokers[0].consume) == (3, True, True)
    assert made in await admin.list_groups()
    with pytest.raises(AlreadyThere, match="billing exists at broker-a"):
        await admin.create_group("billing")
    changed = await admin.update_group("billing", consume=False)
    assert (changed.brokers[0].retries, changed.brokers[0].consume) == (3, False)
    assert await admin.describe_group("billing") == changed
    assert await admin.delete_group("billing") == ["broker-a"]
    assert "billing" not in [group.name for group in await admin.list_groups()]


async def test_lag_and_members(running: RunningBroker, admin: Admin) -> None:
    await admin.create_topic("orders", queues=2)
    await send(running, "orders", "a", "b", "c", "d")
    await consume(running, "orders", 4)
    assert (await admin.group_members("billing")).members == ()
    await send(running, "orders", "e", "f")
    lag = await admin.group_lag("billing", "orders")
    assert (sum(one.lag for one in lag), [one.in_flight for one in lag]) == (2, [0, 0])
    assert all(one.consumed_at is not None for one in lag)
    assert (await admin.group_lags("orders"))["billing"] == lag
    async with PushConsumer(running.nameserver_address, group="billing", options=FIRST) as consumer:

        @consumer.on("orders", tags="paid || open")
        async def take(message: Received) -> None: ...

        async with asyncio.timeout(5):
            while not (found := await admin.group_members("billing")).subscriptions.get("orders"):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        (member,) = found.members
        assert (member.client_id, member.brokers) == (consumer.client.client_id, ("broker-a",))
        assert (found.model, found.type) == ("CLUSTERING", "CONSUME_PASSIVELY")
        assert found.subscriptions["orders"] == "paid || open"


async def test_offsets_are_set_and_reset(running: RunningBroker, admin: Admin) -> None:
    await admin.create_topic("orders", queues=2)
    await send(running, "orders", *"abcd")
    await consume(running, "orders", 4)
    queues = [Queue("orders", "broker-a", number) for number in range(2)]
    ends = await admin.group_offsets("billing", "orders")
    assert (set(ends), sum(ends.values())) == (set(queues), 4)

    preview = await admin.reset_offsets("billing", "orders", "begin", preview=True)
    assert {one.queue: (one.before, one.after) for one in preview} == {
        queue: (ends[queue], 0) for queue in queues
    }
    assert await admin.group_offsets("billing", "orders") == ends  # a preview changes nothing
    assert await admin.reset_offsets("billing", "orders", "begin") == preview
    assert await admin.group_offsets("billing", "orders") == dict.fromkeys(queues, 0)

    await admin.reset_offsets("billing", "orders", "end")
    assert await admin.group_offsets("billing", "orders") == ends
    for to in (datetime.now(UTC) - timedelta(hours=1), timedelta(hours=1), 0):
        changes = await admin.reset_offsets("billing", "orders", to, preview=True)
        assert [one.after for one in changes] == [0, 0]

    # Over a reset that no member has followed yet, and once more.
    for offset in (1, 0):
        before = await admin.group_offsets("billing", "orders")
        (change,) = await admin.set_offsets("billing", {queues[0]: offset})
        assert (change.queue, change.before, change.after) == (queues[0], before[queues[0]], offset)
        assert await admin.group_offsets("billing", "orders") == {**ends, queues[0]: offset}
    with pytest.raises(OptionError, match="offsets"):
        await admin.set_offsets("billing", {queues[0]: -1})
    with pytest.raises(RequestFailed, match="99"):
        await admin.set_offsets("billing", {queues[0]: 99})
    await consume(running, "orders", ends[queues[0]])  # a member continues where it was set


async def test_offsets_of_a_group_without_progress(running: RunningBroker, admin: Admin) -> None:
    await admin.create_topic("orders", queues=1)
    await admin.create_group("billing")
    queue = Queue("orders", "broker-a", 0)
    await send(running, "orders", "a", "b")
    assert await admin.group_offsets("billing", "orders") == {}
    (change,) = await admin.set_offsets("billing", {queue: 1})
    assert (change.before, change.after) == (None, 1)
    assert await admin.group_offsets("billing") == {queue: 1}
    await consume(running, "orders", 1)


@pytest.mark.parametrize("to", ["earliest", -1, True, None])
async def test_a_place_that_is_none_is_refused(admin: Admin, to: Any) -> None:
    with pytest.raises(OptionError, match='"begin", "end", a datetime'):
        await admin.reset_offsets("billing", "orders", to)


async def test_a_time_between_messages(running: RunningBroker, admin: Admin) -> None:
    await admin.create_topic("orders", queues=1)
    await send(running, "orders", "a", "b")
    await asyncio.sleep(0.05)
    between = datetime.now(UTC)
    await asyncio.sleep(0.05)
    await send(running, "orders", "c")
    await consume(running, "orders", 3)
    (change,) = await admin.reset_offsets("billing", "orders", between, preview=True)
    assert (change.before, change.after) == (3, 2)
    found = await admin.find_messages("orders", start=between)
    assert [message.text for message in found.messages] == ["c"]
    found = await admin.find_messages("orders", end=between)
    assert [message.text for message in found.messages] == ["a", "b"]


# --- messages -------------------------------------------------------------------------------------------


async def test_messages_by_id_key_offset_and_number(running: RunningBroker, admin: Admin) -> None:
    await admin.create_topic("orders", queues=1)
    long = "long " * 10_000  # compressed by its producer
    async with Producer(running.nameserver_address, group="shop") as producer:
        first = await producer.send(Message("orders", long, keys="order-1"))
        await producer.send(Message("orders", "b", keys="order-2"))
    for id in (first.msg_id, first.offset_msg_id):
        assert (await admin.find_message(id)).text == long
    assert (await admin.find_message(first.msg_id, "orders")).queue_offset == 0
    assert (await admin.find_message("order-2", "orders")).text == "b"
    assert (await admin.find_messages("orders", key="order-1")).messages[0].text == long
    assert (await admin.read_message(Queue("orders", "broker-a", 0), 0)).text == long
    assert (await admin.read_message(Queue("orders", "broker-a", 0), 1)).text == "b"
    with pytest.raises(OffsetGone) as told:
        await admin.read_message(Queue("orders", "broker-a", 0), 7)
    assert (told.value.asked, told.value.end) == (7, 2)
    everything = await admin.find_messages("orders")
    assert ([len(message.text) for message in everything.messages], everything.cut) == ([len(long), 1], "")
    some = await admin.find_messages("orders", limit=1)
    assert (len(some.messages), some.cut) == (1, "the first 1 of more")
    with pytest.raises(OptionError, match="limit"):
        await admin.find_messages("orders", limit=0)


# --- dead letters ---------------------------------------------------------------------------------------


async def test_dead_letters(running: RunningBroker, admin: Admin) -> None:
    await admin.create_topic("orders", queues=1)
    await admin.create_group("billing")
    assert await admin.find_dead_letters("billing") == FoundMessages(messages=())
    await send(running, "orders", *"abc")
    fail = True
    seen: list[str] = []
    async with PushConsumer(running.nameserver_address, group="billing", options=FIRST) as consumer:

        @consumer.on("orders")
        async def take(message: Received) -> None:
            seen.append(message.text)
            if fail:
                raise DeadLetter("no such account")

        await wait_for(lambda: len(seen) == 3)
        async with asyncio.timeout(5):
            while sum(one.messages for one in await admin.list_dead_letters()) < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        (group,) = await admin.list_dead_letters()
        assert (group.group, group.messages, group.brokers) == ("billing", 3, ("broker-a",))
        assert group.oldest_at is not None
        found = await admin.find_dead_letters("billing", limit=2)
        assert (len(found.messages), found.cut) == (2, "the first 2 of 3")
        (one,) = (await admin.find_dead_letters("billing", ids=[found.messages[0].msg_id])).messages

        fail = False
        preview = await admin.resend_dead_letters("billing", preview=True)
        assert (preview.total, preview.resent, preview.passed_over) == (3, 3, 0)
        assert len(seen) == 3
        result = await admin.resend_dead_letters("billing", ids=[one.msg_id], rate=0)
        assert (result.total, result.resent, result.passed_over) == (1, 1, 0)
        await wait_for(lambda: seen[3:] == [one.text])
        result = await admin.resend_dead_letters("billing", rate=0)
        assert (result.total, result.resent, result.passed_over) == (3, 2, 1)
        await wait_for(lambda: sorted(seen[3:]) == ["a", "b", "c"])
    await admin.create_topic("closed", queues=1, perm=4)
    with pytest.raises(
        ResendStopped, match=r"after 0 of 3: topic closed has no writable queue.*Repeat"
    ) as told:
        await admin.resend_dead_letters("billing", to_topic="closed")
    assert (told.value.total, told.value.resent, told.value.passed_over) == (3, 0, 0)
    assert isinstance(told.value.__cause__, NotFound)
    with pytest.raises(OptionError, match="either to_topic or to_retry"):
        await admin.resend_dead_letters("billing", to_topic="orders", to_retry=True)
    with pytest.raises(OptionError, match="either ids, or a key and times"):
        await admin.find_dead_letters("billing", ids=[one.msg_id], key="k")
    with pytest.raises(OptionError, match="a list of ids"):
        await admin.resend_dead_letters("billing", ids="1234")


# --- life -----------------------------------------------------------------------------------------------


async def test_it_works_only_while_it_is_open(running: RunningBroker) -> None:
    admin = Admin(running.nameserver_address)
    with pytest.raises(Closed, match="async with"):
        await admin.list_topics()
    async with admin:
        assert await admin.list_topics() == []
        with pytest.raises(OtherLoop):
            await asyncio.to_thread(lambda: asyncio.run(admin.list_topics()))
    await admin.close()
    with pytest.raises(Closed):
        await admin.list_topics()
    async with admin:
        assert await admin.list_topics() == []
    with pytest.raises(OptionError, match="full names"):
        Admin(ClientOptions(running.nameserver_address, namespace="test"))


async def test_no_name_server_is_a_connection_error() -> None:
    async with Admin("127.0.0.1:1") as admin:
        with pytest.raises(ConnectionError):
            await admin.list_topics()


# --- the twin -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerThread]:
    with broker_in_thread() as broker:
        yield broker


def test_without_await(broker: BrokerThread) -> None:
    with blocking.Admin(broker.nameserver_address) as admin:
        assert admin.is_open
        made = admin.create_topic("orders", queues=2)
        assert admin.describe_topic("orders") == made
        assert admin.list_topics() == ["orders"]
        admin.update_topic("orders", queues=4)
        assert len(admin.topic_stats("orders")) == 4
        assert admin.topic_groups("orders") == []
        admin.create_group("billing")
        assert "billing" in [group.name for group in admin.list_groups()]
        admin.update_group("billing", retries=2)
        assert admin.describe_group("billing").brokers[0].retries == 2
        assert admin.group_members("billing").members == ()
        with blocking.Producer(broker.nameserver_address, group="shop") as producer:
            receipt = producer.send(Message("orders", "a", keys="k"))
        queue = receipt.queue
        assert admin.find_message(receipt.msg_id, "orders").text == "a"
        assert admin.find_messages("orders", key="k").messages[0].text == "a"
        assert admin.read_message(queue, 0).text == "a"
        admin.set_offsets("billing", {queue: 1})
        assert admin.group_offsets("billing") == {queue: 1}
        assert admin.group_lag("billing", "orders")[queue.queue_id].lag == 0
        assert "billing" in admin.group_lags()
        changes = admin.reset_offsets("billing", "orders", "begin")
        assert {one.after for one in changes} == {0}
        assert admin.list_dead_letters() == []
        assert admin.find_dead_letters("billing").messages == ()
        assert admin.resend_dead_letters("billing").total == 0
        admin.delete_group("billing")
        assert admin.delete_topic("orders") == ["broker-a"]
        with pytest.raises(blocking.NotFound):
            admin.describe_topic("orders")
    assert not admin.is_open
