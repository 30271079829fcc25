"""Brokers under a controller: the leader goes, another one that has everything leads, and nothing is lost."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from kerolox import Message, Producer, ProducerOptions
from kerolox.client.admin.calls import AdminCalls
from kerolox.client.nameservers import NameServers
from kerolox.errors import KeroloxError
from kerolox.net.dialer import Dialer
from kerolox.protocol.bodies.topics import AllTopics, DataVersion
from kerolox.protocol.codes import ResponseCode
from kerolox.protocol.record import decode_records
from kerolox.store.state import Obstacle
from kerolox.testing.broker import RunningBroker
from kerolox.testing.controlled import RunningControlled, running_controlled

from .talk import Talk

TOPIC = "T"
QUICK = {"alive_ms": 100, "alive_timeout_ms": 100}


class Senders:
    """They send all the time, and know what was acknowledged."""

    def __init__(self, group: RunningControlled, count: int = 4) -> None:
        self.acked: list[bytes] = []
        self.not_ok: Counter[str] = Counter()
        self._group = group
        self._count = count
        self._is_over = False

    async def __aenter__(self) -> Senders:
        options = ProducerOptions(timeout_s=10.0)
        self._producer = Producer(self._group.nameserver_address, group="senders", options=options)
        await self._producer.__aenter__()
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._send(number)) for number in range(self._count)]
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._is_over = True
        await asyncio.gather(*self._tasks)
        await self._producer.__aexit__(None, None, None)

    async def more(self, count: int = 50) -> None:
        """Wait until so many more are acknowledged."""
        goal = len(self.acked) + count
        await self._group.until(lambda: len(self.acked) >= goal, f"{count} more sends ({self.not_ok})")

    async def _send(self, number: int) -> None:
        count = 0
        while not self._is_over:
            body = b"%d-%d" % (number, count)
            count += 1
            try:
                receipt = await self._producer.send(Message(TOPIC, body))
            except KeroloxError as error:
                self.not_ok[f"{type(error).__name__} {error}"[:200]] += 1
                await asyncio.sleep(0.01)
                continue
            if receipt.status.value == 0:
                self.acked.append(body)
            else:
                self.not_ok[receipt.status.name] += 1


async def bodies(broker: RunningBroker, topic: str = TOPIC) -> list[bytes]:
    """All messages of a topic, as a consumer reads them."""
    found: list[bytes] = []
    async with Dialer() as dialer:
        talk = Talk(dialer, broker)
        config = broker.broker.tables.topics.find(topic)
        assert config is not None
        for queue_id in range(config.read_queue_nums):
            offset = 0
            while (answer := await talk.pull(topic, queue_id, offset)).code == 0:
                found += [message.body for message in decode_records(answer.body)]
                offset = int(answer.fields["nextBeginOffset"])
            assert answer.code == ResponseCode.PULL_NOT_FOUND, (answer.code, answer.remark)
    return found


def log_of(one: RunningBroker) -> bytes:
    log = one.broker.store.log
    return b"".join(
        log.read(at, min(1 << 20, log.max_offset - at)) for at in range(0, log.max_offset, 1 << 20)
    )


async def all_have(group: RunningControlled, acked: list[bytes]) -> None:
    """Every broker that runs has what was acknowledged, and all have the same."""
    await group.caught_up()
    leader = await group.leading()
    there = await bodies(leader)
    missing = set(acked) - set(there)
    assert not missing, f"{len(missing)} acknowledged messages are lost: {sorted(missing)[:5]}"
    for one in group.brokers.values():
        if one.is_running:
            assert log_of(one) == log_of(leader)


async def test_the_leader_is_killed_and_nothing_is_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with running_controlled(3, directory=tmp_path) as group:
        async with Senders(group) as senders:
            await senders.more()
            await group.kill(1)
            leader = await group.leading(but=1)
            await senders.more()
            await group.in_sync(2)
            await group.start_again(1)
            await group.in_sync(3)
            await senders.more()
            second = group.number_of(leader)
            await group.kill(second)
            await group.leading(but=second)
            await senders.more()
            await group.start_again(second)
            await group.in_sync(3)
        await all_have(group, senders.acked)
        epochs = {one.broker.store.notes.epochs.entries for one in group.brokers.values()}
        assert len(epochs) == 1
        assert "broker_elected id=" in caplog.text


async def test_a_leader_cut_off_from_the_controller_acknowledges_nothing_more(tmp_path: Path) -> None:
    async with (
        running_controlled(
            3, directory=tmp_path, slaveTimeout=5000, controller_silence_ms=1000, **QUICK
        ) as group,
        Dialer() as dialer,
    ):
        first = group.broker(1)
        talk = Talk(dialer, first)
        assert (await talk.send(TOPIC, b"before")).code == 0
        group.control_link(1).cut()  # the controller sees it go, and elects another
        second = await group.leading(but=1)
        await group.until(lambda: Obstacle.NO_LEASE in first.broker.store.state.obstacles, "end of the lease")
        assert first.broker.leadership.leads  # nobody has told it
        refused = await talk.send(TOPIC, b"refused")
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "no controller has answered this leader" in str(refused.remark)
        assert (await Talk(dialer, second).send(TOPIC, b"taken")).code == 0
        group.control_link(1).heal()
        await group.in_sync(3)
        assert not first.broker.leadership.leads
        assert Obstacle.NO_LEASE not in first.broker.store.state.obstacles
        await all_have(group, [b"before", b"taken"])


async def test_a_deposed_leader_never_says_yes_and_what_it_wrote_is_cut(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It has not heard of its successor, and its lease still holds. Once it hears while it runs, once when it
    was killed and starts again."""
    caplog.set_level(logging.INFO)
    async with (
        running_controlled(3, directory=tmp_path, slaveTimeout=300, **QUICK) as group,
        Dialer() as dialer,
    ):
        acked = [b"first"]
        assert (await Talk(dialer, group.broker(1)).send(TOPIC, b"first")).code == 0
        for kills in (False, True):
            old = await group.leading()
            number = group.number_of(old)
            talk, confirmed = Talk(dialer, old), old.broker.store.progress.confirmed
            group.control_link(number).cut()
            new = await group.leading(but=number)
            assert old.broker.leadership.leads  # two of them
            answers = await asyncio.gather(*[talk.send(TOPIC, b"late-%d" % one) for one in range(5)])
            assert {answer.code for answer in answers} <= {
                ResponseCode.SLAVE_NOT_AVAILABLE,
                ResponseCode.FLUSH_SLAVE_TIMEOUT,
            }
            assert old.broker.store.log.max_offset > confirmed
            assert old.broker.store.progress.confirmed == confirmed  # nobody reads it
            taken = b"taken-%d" % kills
            assert (await Talk(dialer, new).send(TOPIC, taken)).code == 0
            acked.append(taken)
            if kills:
                await group.kill(number)
            group.control_link(number).heal()
            if kills:
                await group.start_again(number)
            await group.in_sync(3)
            await all_have(group, acked)
            assert sorted(await bodies(new)) == sorted(acked)


async def test_a_follower_that_is_cut_off_is_not_waited_for(tmp_path: Path) -> None:
    async with running_controlled(3, directory=tmp_path) as group, Dialer() as dialer:
        talk = Talk(dialer, group.broker(1))
        group.link(3).cut()
        await group.in_sync(2)
        assert (await talk.send(TOPIC, b"1")).code == 0
        assert group.controller.groups["broker-a"].in_sync == {1, 2}
        # Who is not in sync is not elected, whatever happens.
        await group.kill(1)
        assert group.number_of(await group.leading(but=1)) == 2
        assert (await Talk(dialer, group.broker(2)).send(TOPIC, b"2")).code == 0
        group.link(3).heal()
        await group.in_sync(2)
        await group.start_again(1)
        await group.in_sync(3)
        await all_have(group, [b"1", b"2"])


async def test_topics_made_just_before_a_switch_are_there(tmp_path: Path) -> None:
    async with running_controlled(2, directory=tmp_path, autoCreateTopicEnable="false") as group:
        await group.broker(1).create_topic("New", queues=3)
        await group.until(
            lambda: group.broker(2).broker.tables.topics.find("New"), "topic at the follower", timeout_s=2
        )
        await group.kill(1)
        await group.leading(but=1)
        async with Dialer() as dialer:
            admin = AdminCalls(NameServers([group.nameserver_address], dialer), dialer)
            await group.until(lambda: group.nameserver.routes.topics.get("New"), "route")
            route = await admin.route("New")
        assert [queue.write_queue_nums for queue in route.queue_datas] == [3]


async def test_people_see_who_leads_and_who_is_in_sync(tmp_path: Path) -> None:
    async with running_controlled(2, directory=tmp_path) as group, Dialer() as dialer:
        assert (await Talk(dialer, group.broker(1)).send(TOPIC, b"1")).code == 0
        await group.caught_up()
        admin = AdminCalls(NameServers([group.nameserver_address], dialer), dialer)
        status = await admin.ha_status(group.broker(1).address)
        assert status is not None
        assert status.controlled is not None
        told, end = status.controlled, group.broker(1).broker.store.log.max_offset
        assert (told.broker_id, told.master_broker_id, told.master_epoch) == (1, 1, 1)
        assert (told.in_sync_set, told.confirmed_offset, told.waits_for) == ((1, 2), end, None)
        assert told.lease_ms is not None
        assert 0 < told.lease_ms <= 10_000
        assert [(one.broker_id, one.in_sync) for one in status.ha_connection_info] == [(2, True)]
        other = await admin.ha_status(group.broker(2).address)
        assert other is not None
        assert other.controlled is not None
        assert (other.master, other.controlled.broker_id, other.controlled.in_sync_set) == (False, 2, None)


async def test_a_leader_that_stops_lets_another_lead_first(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with running_controlled(3, directory=tmp_path) as group:
        async with Senders(group) as senders:
            for _ in range(3):
                await senders.more()
                number = group.number_of(await group.leading())
                await group.stop(number)
                assert group.leader is not None
                assert "handed_over to=" in caplog.text
                caplog.clear()
                await group.start_again(number)
                await group.in_sync(3)
        await all_have(group, senders.acked)
        assert not senders.not_ok  # everybody got his yes


async def test_a_leader_whose_disk_fails_lets_another_lead(tmp_path: Path) -> None:
    async with running_controlled(2, directory=tmp_path) as group, Dialer() as dialer:
        first = group.broker(1)
        assert (await Talk(dialer, first).send(TOPIC, b"1")).code == 0
        first.broker.store.state.set(Obstacle.FENCED, "a flush failed: no such device")
        second = await group.leading(but=1)
        await group.until(lambda: not first.broker.leadership.leads, "leader that gives up")
        assert (await Talk(dialer, second).send(TOPIC, b"2")).code == 0
        assert sorted(await bodies(second)) == [b"1", b"2"]


async def test_one_whose_disk_failed_is_not_elected(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running_controlled(2, directory=tmp_path, controller_silence_ms=1000) as group:
        second = group.broker(2).broker
        second.store.state.set(Obstacle.FENCED, "a flush failed: no such device")
        alive = group.controller.live
        name = second.options.broker_name
        await group.until(lambda: 2 not in alive.view([name]).of(name), "controller that does not hear it")
        # Elected all the same: it says why it does not lead, once.
        elections = second.controlled.elections  # type: ignore[union-attr]
        heeded = elections.mastership
        told = msgspec.structs.replace(heeded, epoch=heeded.epoch + 1, id=2, address=second.address)
        elections.offer(told, "a test")
        await group.until(lambda: "role_not_taken" in caplog.text, "role that is not taken")
        await asyncio.sleep(1.5)  # it was tried again meanwhile
        assert caplog.text.count("role_not_taken") == 1
        assert "a flush failed: no such device; restart this broker" in second.leadership.waits_for
        assert second.leadership.waits_for.count("cannot take its role") == 1


async def test_topics_are_not_copied_from_who_does_not_lead(tmp_path: Path) -> None:
    """A leader that lost its disk is back at its address, with nothing, before anybody is elected."""
    async with running_controlled(2, directory=tmp_path) as group, Dialer() as dialer:
        assert (await Talk(dialer, group.broker(1)).send(TOPIC, b"1")).code == 0
        follower = group.broker(2).broker
        topics = follower.tables.topics
        queues = follower.store.queues.by_topic
        await group.until(
            lambda: TOPIC in topics.table.topics and TOPIC in queues, "topic and message at the follower"
        )
        await follower.copies.copy.close()  # nothing is copied in between
        await follower.copies.copy._topics(AllTopics(data_version=DataVersion(counter=99, timestamp=1)))
        assert TOPIC in topics.table.topics
        assert [queue.max_offset for queue in queues[TOPIC].values()] == [1]
        told = DataVersion(counter=99, state_version=topics.table.state_version, timestamp=1)
        await follower.copies.copy._topics(AllTopics(data_version=told))  # who leads may remove one
        assert TOPIC not in topics.table.topics
