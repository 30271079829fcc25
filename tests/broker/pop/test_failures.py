"""Pops beside failing disks, resets, deleted topics, handles that do not count, and kills at any time."""

from __future__ import annotations

import asyncio
import errno
import random
from pathlib import Path

import pytest

from kerolox.net.dialer import Dialer
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.headers.offset import ResetOffsetRequest
from kerolox.protocol.headers.topic import DeleteTopicRequest
from kerolox.testing.broker import running_broker
from kerolox.testing.clock import ManualClock
from kerolox.testing.faults import FaultyFiles
from kerolox.testing.nameserver import running_nameserver
from tests.broker.pop.kit import GROUP, TOPIC, Popped, Popper, advance_until, committed, out
from tests.broker.pop.test_pops import poppers
from tests.broker.talk import until
from tests.broker.test_promoted import pass_until


async def test_a_message_that_cannot_be_read_when_it_is_due_comes_later(tmp_path: Path) -> None:
    clock, files = ManualClock(), FaultyFiles()
    async with poppers(clock=clock, files=files, directory=tmp_path) as one:
        await one.send(TOPIC, b"kept")
        await one.take(invisible_time=5000)
        files.fail_reads(errno.EIO, path_contains="commitlog")
        for _ in range(8):
            await clock.advance(1)
            await asyncio.sleep(0.02)
        assert out(one.running) == 1
        files.fail_reads(None, path_contains="commitlog")
        await advance_until(clock, lambda: not out(one.running))
        assert [message.body for message in await one.take()] == ["kept"]


async def test_a_pop_that_cannot_read_takes_nothing(tmp_path: Path) -> None:
    files = FaultyFiles()
    async with poppers(files=files, directory=tmp_path) as one:
        for number in range(3):
            await one.send(TOPIC, b"%d" % number)
        files.fail_reads(errno.EIO, path_contains="commitlog")
        assert (await one.pop()).code != 0
        assert (out(one.running), committed(one.running)) == (0, 0)
        files.fail_reads(None, path_contains="commitlog")
        assert len(await one.take()) == 3


async def test_messages_on_the_disk_are_popped_by_a_thread(tmp_path: Path) -> None:
    """Meanwhile the queue is closed to others, which get nothing twice."""
    files = FaultyFiles()
    async with poppers(files=files, directory=tmp_path) as one:
        for number in range(20):
            await one.send(TOPIC, b"%d" % number)
        files.cold = lambda path, offset, size: "commitlog" in path
        found = await asyncio.gather(*[one.take(max_msg_nums=10) for _ in range(4)])
        files.cold = None
        found.append(await one.take())
        bodies = [message.body for messages in found for message in messages]
        assert sorted(bodies, key=int) == [str(number) for number in range(20)]
        assert len(set(bodies)) == 20


async def test_a_reset_begins_anew(tmp_path: Path) -> None:
    async with poppers(directory=tmp_path, server_side_reset=True) as one:
        for number in range(4):
            await one.send(TOPIC, b"%d" % number)
        for message in await one.take():
            await one.ack(message)
        assert committed(one.running) == 4
        header = ResetOffsetRequest(
            topic=TOPIC, group=GROUP, timestamp=-1, is_force=True, queue_id=0, offset=1
        )
        answer = await one.dialer.call(one.address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
        assert answer.code == 0, answer.remark
        assert [message.body for message in await one.take()] == ["1", "2", "3"]


async def test_a_topic_that_is_created_again_begins_at_its_first_message(tmp_path: Path) -> None:
    async with poppers(directory=tmp_path) as one:
        for number in range(4):
            await one.send(TOPIC, b"%d" % number)
        (first, *_) = await one.take()
        answer = await one.dialer.call(
            one.address, RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequest(topic=TOPIC)
        )
        assert answer.code == 0
        assert out(one.running) == 0
        await one.running.create_topic(TOPIC, queues=1)
        await one.send(TOPIC, b"new")
        assert (await one.ack(first)).code in (0, ResponseCode.NO_MESSAGE)
        assert (await one.change(first, 1000)).code == ResponseCode.NO_MESSAGE
        assert [message.body for message in await one.take()] == ["new"]


async def test_handles_count_only_for_their_message() -> None:
    async with poppers(queues=2) as one:
        for number in range(3):
            await one.send(TOPIC, b"%d" % number, queue_id=0)
        await one.send(TOPIC, b"other", queue_id=1)
        found = await one.take(queue_id=0)
        stranger = Popped(found[0].message, found[0].handle, TOPIC, "strangers")
        message, true = found[0].message, found[0].handle
        later = Popped(message, true._replace(pop_time=true.pop_time + 1), TOPIC, GROUP)
        elsewhere = Popped(message, true._replace(broker_name="broker-b"), TOPIC, GROUP)
        forged: list[tuple[str, Popped, dict[str, int]]] = [
            ("of another group", stranger, {}),
            ("of another queue", found[0], {"queue_id": 1}),
            ("of a later pop", later, {}),
            ("of another broker", elsewhere, {}),
        ]
        for why, handle, fields in forged:
            assert (await one.ack(handle, **fields)).code == 0, why
            answer = await one.change(handle, 60_000, **fields)
            assert answer.code == ResponseCode.NO_MESSAGE, why
        assert out(one.running) == 3
        assert (await one.ack(found[0], extra_info="1 2 3")).code == ResponseCode.INVALID_PARAMETER
        assert (await one.ack(found[0], offset=9)).code == ResponseCode.NO_MESSAGE
        assert (await one.ack(found[0], queue_id=7)).code == ResponseCode.MESSAGE_ILLEGAL
        assert (await one.ack(found[0], topic="unknown")).code == ResponseCode.TOPIC_NOT_EXIST


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": "unknown"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"max_msg_nums": 33}, ResponseCode.INVALID_PARAMETER),
        ({"queue_id": 4}, ResponseCode.INVALID_PARAMETER),
        ({"invisible_time": -1}, ResponseCode.INVALID_PARAMETER),
        ({"invisible_time": 10**10}, ResponseCode.INVALID_PARAMETER),
        ({"exp_type": "SQL92", "exp": "a >"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        ({"born_time": 1}, ResponseCode.POLLING_TIMEOUT),
    ],
)
async def test_pops_that_cannot_be_served_are_refused(fields: dict[str, object], code: ResponseCode) -> None:
    async with poppers() as one:
        answer = await one.pop(**fields)  # type: ignore[arg-type]
        assert answer.code == code
        assert answer.fields["popTime"] == "0"


async def test_without_a_timer_there_are_no_pops() -> None:
    async with poppers(timer_wheel=False) as one:
        assert (await one.pop()).code == ResponseCode.SYSTEM_ERROR


async def test_a_follower_that_leads_goes_on_with_what_was_popped(tmp_path: Path) -> None:
    clock = ManualClock()
    async with (
        running_nameserver(directory=tmp_path / "n") as nameserver,
        running_broker(directory=tmp_path / "a", nameserver=nameserver, clock=clock) as one,
        running_broker(
            directory=tmp_path / "b", nameserver=nameserver, clock=clock, brokerRole="SLAVE", brokerId=1
        ) as two,
        Dialer(clock=clock) as dialer,
    ):
        leader, follower = one.broker, two.broker
        await one.create_topic(TOPIC, queues=1)
        talk = Popper(dialer, one)
        for number in range(4):
            await talk.send(TOPIC, b"%d" % number)
        assert (await Popper(dialer, two).pop()).code != 0
        found = await talk.take(invisible_time=120_000)
        await talk.ack(found[0])
        await pass_until(clock, lambda: committed(one) == 4, 60)
        await talk.ack(found[1])
        for _ in range(2):  # one may be under way
            before = follower.copies.copy.passes
            follower.copies.copy.copy_now()
            await pass_until(clock, lambda before=before: follower.copies.copy.passes > before, 60)
        await pass_until(clock, lambda: follower.store.log.max_offset == leader.store.log.max_offset, 10)
        await one.kill()
        await follower.leadership.lead()
        talk = Popper(dialer, two)
        assert committed(two) == 4
        assert await talk.take() == []
        assert (await talk.ack(found[2])).code == 0
        await advance_until(clock, lambda: follower.popping.retries.made)
        assert [message.body for message in await talk.take()] == ["3"]
        for _ in range(20):
            await clock.advance(0.5)
        assert await talk.take() == []


@pytest.mark.parametrize("seed", range(4))
async def test_kills_at_any_time_lose_nothing(tmp_path: Path, seed: int) -> None:
    """Messages that were not acknowledged come again, whatever was popped, changed or stored at the kill."""
    rng, clock = random.Random(seed), ManualClock()
    async with (
        running_broker(directory=tmp_path, clock=clock, pop_stay_ms=2000) as running,
        Dialer(clock=clock) as dialer,
    ):
        await running.create_topic(TOPIC, queues=2)
        acked: set[str] = set()
        sent: set[str] = set()
        one = Popper(dialer, running)
        for life in range(4):
            held: list[Popped] = []
            for _ in range(40):
                deed = rng.random()
                if deed < 0.25:
                    body = f"{life}-{len(sent)}"
                    assert (await one.send(TOPIC, body.encode(), queue_id=rng.randrange(2))).code == 0
                    sent.add(body)
                elif deed < 0.5:
                    held += await one.take(
                        invisible_time=rng.choice([1000, 4000, 20_000]), max_msg_nums=rng.randint(1, 4)
                    )
                elif deed < 0.75 and held:
                    message = held.pop(rng.randrange(len(held)))
                    assert (await one.ack(message)).code == 0
                    acked.add(message.body)
                elif deed < 0.85 and held:
                    await one.change(held.pop(rng.randrange(len(held))), rng.choice([0, 3000, 30_000]))
                else:
                    await clock.advance(rng.choice([0.1, 1.0, 3.0]))
                    await asyncio.sleep(0.01)
            await running.kill()
            await running.start()
            one = Popper(dialer, running)
        seen: set[str] = set()
        for _ in range(200):
            for message in await one.take():
                seen.add(message.body)
                await one.ack(message)
            if sent <= seen | acked:
                break
            await clock.advance(0.5)
            await asyncio.sleep(0.02)
        assert sent <= seen | acked, sorted(sent - seen - acked)
        await until(lambda: out(running) == 0)
