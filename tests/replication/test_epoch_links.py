"""Leaders and followers under a controller: what is copied, cut, confirmed and refused."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from kerolox.protocol.ha_epochs import Epoch, Hello, pack_epoch_report, pack_hello
from kerolox.replication.epoch_connection import EpochConnection
from kerolox.replication.epoch_history import EpochHistory
from kerolox.replication.link_state import LinkState
from kerolox.replication.turned_away import Why
from kerolox.store.errors import StoreError
from kerolox.store.log.safe import Safe
from kerolox.store.state import Obstacle
from kerolox.testing.faults import FaultyFiles

from .epoch_kit import Replica, group, replica_at
from .kit import FILE, Between, put, raw, store_at, until


def epochs(*pairs: tuple[int, int]) -> tuple[Epoch, ...]:
    return tuple(Epoch(*pair) for pair in pairs)


async def in_sync(leader: Replica, *ids: int) -> None:
    """Wait until these are in the set, by a controller that agrees to all."""

    def reached() -> bool:
        leader.take_in()
        return leader.in_sync.members == {*ids}

    await until(reached, lambda: leader.in_sync.status())


async def test_a_follower_copies_epochs_and_all(tmp_path: Path) -> None:
    async with group(tmp_path) as (one, two):
        await one.lead(1)
        put(one.store, 50)
        await two.follow(one)
        await two.has(one)
        await in_sync(one, 1, 2)
        put(one.store, 500)
        assert one.store.progress.confirmed < one.store.log.max_offset
        await two.has(one)
        assert one.store.progress.confirmed == one.store.log.max_offset
        assert two.history.entries == epochs((1, 0))
        second = one.store.log.max_offset
        await one.history.begin(2, second)  # while it is connected
        put(one.store, 5)
        await two.has(one)
        assert two.history.entries == epochs((1, 0), (2, second))
        (connection,) = one.leader.followers
        assert isinstance(connection, EpochConnection)
        assert (connection.follower_id, connection.epoch, connection.in_sync) == (2, 2, True)


async def test_what_is_acknowledged_is_at_all_of_the_set(tmp_path: Path) -> None:
    async with group(tmp_path) as (one, two), Between(one.address) as between:
        await one.lead(1)
        await two.follow(between.address)
        await in_sync(one, 1, 2)
        between.open.clear()
        put(one.store, 3)
        told: list[Safe] = []
        one.store.acks.when_safe(one.store.log.max_offset, told.append)
        await asyncio.sleep(0.05)
        assert not told
        assert one.store.queues.max_offset("T", 0) == 0, "nobody sees it"
        between.open.set()
        await until(lambda: told == [Safe.YES])
        assert two.store.log.max_offset == one.store.log.max_offset
        assert one.store.queues.max_offset("T", 0) == 1
        await until(lambda: two.store.queues.max_offset("T", 0) == 1)
        # It goes, and the leader goes on alone when the controller has said so.
        await two.follower.stop()
        put(one.store, 3)
        one.store.acks.when_safe(one.store.log.max_offset, told.append)
        await until(lambda: one.in_sync.wanted() == {1})
        assert told == [Safe.YES]
        one.take_in()
        assert told == [Safe.YES, Safe.YES]


async def test_a_follower_is_taken_in_while_messages_come(tmp_path: Path) -> None:
    """It is never level with the leader: there is always something on its way."""
    async with group(tmp_path) as (one, two):
        await one.lead(1)
        put(one.store, 1000)
        level = 0

        async def load() -> None:
            nonlocal level
            while True:
                put(one.store, 3)
                await asyncio.sleep(0)
                level += any(status.acked == one.store.log.max_offset for status in one.in_sync.status()[1:])

        writing = asyncio.ensure_future(load())
        try:
            await two.follow(one)
            await in_sync(one, 1, 2)
        finally:
            writing.cancel()
        assert level == 0, "it was level, so this shows nothing"
        await two.has(one)


async def test_the_role_moves_and_the_old_leader_is_cut(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with group(tmp_path, 3) as (one, two, three):
        await one.lead(1)
        put(one.store, 50)
        for other in (two, three):
            await other.follow(one)
            await other.has(one)
        await in_sync(one, 1, 2, 3)
        common = one.store.log.max_offset
        for other in (two, three):
            await other.follower.stop()
        put(one.store, 7)  # copied by nobody, and acknowledged to nobody
        lost = one.store.log.max_offset
        assert one.store.progress.confirmed == common
        await two.lead(2)
        assert two.store.progress.confirmed == common
        put(two.store, 9)
        await one.follow(two)
        await one.has(two)
        await three.follow(two)
        await three.has(two)
        assert one.history.entries == epochs((1, 0), (2, common))
        assert f"log_truncated offset={common} before={lost} bytes={lost - common} records=7" in caplog.text
        # And back again.
        await in_sync(two, 1, 2, 3)
        await two.rest()
        await one.lead(5)
        put(one.store, 3)
        await two.follow(one)
        await two.has(one)


async def test_an_old_leader_without_room_for_the_cut_goes_on_when_there_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = FaultyFiles()
    async with replica_at(tmp_path / "1", 1, files) as one, replica_at(tmp_path / "2", 2) as two:
        await one.lead(1)
        put(one.store, 50)
        await two.follow(one)
        await two.has(one)
        await in_sync(one, 1, 2)
        await two.follower.stop()
        put(one.store, 7)
        had = raw(one.store)
        await two.lead(2)
        put(two.store, 9)
        await one.store.housekeeper.flush()  # a round that finds no room would say so, too
        files.fill()
        await one.follow(two)
        assert "kerolox.cut.tmp at byte 0: No space left on device" in await one.becomes(LinkState.LOST)
        assert raw(one.store) == had
        assert one.store.state.obstacles.keys() == {Obstacle.FOLLOWER}
        (line,) = [line for line in caplog.messages if "kerolox.cut.tmp" in line]
        assert "Next: free space on that disk or shorten the retention.' next='retried automatically'" in line
        files.make_room()
        await one.has(two)


@pytest.mark.parametrize("seed", range(3))
async def test_nothing_confirmed_is_lost_whoever_leads(tmp_path: Path, seed: int) -> None:
    """Elections out of the set at any moment, with writes that nobody copied in between."""
    chance = random.Random(seed)
    async with group(tmp_path, 3, ha_heartbeat_ms=50) as replicas:
        leader = replicas[0]
        confirmed = b""
        for epoch in range(1, 9):
            await leader.lead(epoch)
            assert raw(leader.store).startswith(confirmed)
            others = [one for one in replicas if one is not leader]
            for other in others:
                await other.follow(leader)
            for _ in range(chance.randint(1, 6)):
                put(leader.store, chance.randint(1, 20))
                await asyncio.sleep(chance.random() / 50)
                leader.take_in()
            gone = chance.choice(others)
            await gone.follower.stop()
            put(leader.store, chance.randint(0, 5))
            leader.take_in()
            confirmed = raw(leader.store)[: leader.store.progress.confirmed]
            members = sorted(leader.in_sync.members)
            for other in others:
                await other.follower.stop()
            await leader.rest()
            leader = replicas[chance.choice(members) - 1]
        await leader.lead(9)
        assert raw(leader.store).startswith(confirmed)
        for other in replicas:
            if other is not leader:
                await other.follow(leader)
                await other.has(leader)


# --- where it begins -------------------------------------------------------------------------------------


@pytest.mark.parametrize("last_file", [False, True])
async def test_a_follower_with_nothing_gets_what_the_leader_has_left(tmp_path: Path, last_file: bool) -> None:
    async with group(tmp_path) as (one, two):
        await one.lead(1)
        put(one.store, 1000)
        await one.history.begin(3, one.store.log.max_offset)
        put(one.store, 10)
        await one.store.expiry.delete_before(FILE)
        assert one.store.log.min_offset == FILE
        two.mode.from_last_file = last_file
        await two.follow(one)
        await until(lambda: two.store.log.max_offset == one.store.log.max_offset, lambda: two.follower.text)
        low = two.store.log.min_offset
        assert low == (one.store.log.max_offset // FILE * FILE if last_file else FILE)
        assert raw(two.store) == raw(one.store, low)
        assert two.history.entries == one.history.entries
        # Nothing of it is taken for more than it is.
        await two.follower.stop()
        await two.lead(4)
        await one.follow(two)
        await until(lambda: one.follower.copying, lambda: one.follower.text)


async def test_both_with_nothing(tmp_path: Path) -> None:
    async with group(tmp_path) as (one, two):
        await one.lead(1)
        await two.follow(one)
        await in_sync(one, 1, 2)
        await until(lambda: two.follower.copying)
        await two.follower.stop()
        await two.lead(2)
        await one.follow(two)
        await in_sync(two, 1, 2)
        put(two.store, 1)
        await one.has(two)
        assert one.history.entries == epochs((2, 0))


async def test_a_log_without_epochs_is_compared_and_takes_the_leaders(tmp_path: Path) -> None:
    """As of brokers that had no controller before."""
    async with store_at(tmp_path / "1") as store:
        put(store, 30)
        data = raw(store)
    async with store_at(tmp_path / "2") as store:
        store.log.append_raw(data[:7000])
    async with group(tmp_path) as (one, two):
        await one.lead(1)
        put(one.store, 10)
        await two.follow(one)
        await two.has(one)
        assert two.history.entries == epochs((1, len(data)))
        await two.follower.stop()
        await two.follow(one)
        await two.has(one)


async def test_another_log_without_epochs_is_refused(tmp_path: Path) -> None:
    for number in (1, 2):
        async with store_at(tmp_path / str(number)) as store:
            put(store, 30 if number == 2 else 50, topic=f"T{number}")
            data = raw(store)
    async with group(tmp_path) as (one, two):
        await one.lead(1)
        await two.follow(one)
        text = await two.becomes(LinkState.DIVERGED)
        assert "the two logs differ at" in text
        assert "kerolox store resync" in text
        assert raw(two.store) == data
        assert two.history.entries == ()


# --- what is refused -------------------------------------------------------------------------------------


async def test_epochs_without_anything_in_common(tmp_path: Path) -> None:
    async with group(tmp_path) as (one, two):
        await one.lead(7)
        put(one.store, 10)
        start = two.store.segments.size
        await two.store.begin_at(start)
        await two.lead(8)
        put(two.store, 10)
        await two.follow(one)
        text = await two.becomes(LinkState.DIVERGED)
        assert f"have no epoch in common: 8 from {start} here, 7 from 0 there" in text
        assert "ive it an empty store directory" in text
        assert f"move {two.store.notes.epochs.path} away and start it" in text
        assert "kerolox store resync" in text


async def test_logs_that_only_begin_together(tmp_path: Path) -> None:
    async with group(tmp_path) as (one, two):
        await one.lead(7)
        put(one.store, 10)
        await two.lead(8)
        put(two.store, 10)
        end = two.store.log.max_offset
        await two.follow(one)
        text = await two.becomes(LinkState.DIVERGED)
        assert f"agrees with this one only up to 0, but messages up to {end} are confirmed here" in text
        assert two.store.log.max_offset == end


async def test_what_was_confirmed_is_not_cut_away(tmp_path: Path) -> None:
    """An unclean election: the new leader lacks what was acknowledged."""
    async with group(tmp_path) as (one, two):
        await one.lead(1)
        put(one.store, 10)
        await two.follow(one)
        await two.has(one)
        await two.follower.stop()
        put(one.store, 10)  # alone in its set: confirmed
        before = raw(one.store)
        await two.lead(2)
        put(two.store, 5)
        await one.follow(two)
        text = await one.becomes(LinkState.DIVERGED)
        assert f"but messages up to {len(before)} are confirmed here" in text
        assert "Make this broker the leader" in text
        assert raw(one.store) == before
        assert one.history.entries == epochs((1, 0))


async def test_an_old_leader_that_lost_its_end_goes_on_in_its_epoch(tmp_path: Path) -> None:
    """By Apache's controller: the same epoch, other bytes. The epochs do not show it, the bytes do."""
    async with group(tmp_path) as (one, two):
        await one.lead(1)
        put(one.store, 10)
        await two.follow(one)
        await two.has(one)
        await two.follower.stop()
        await one.rest()
        entries = [
            entry for part, _ in one.store.log.entries_from(0, one.store.log.max_offset) for entry in part
        ]
        await one.store.truncate(entries[8][4])  # as power was lost
        await one.lead(1)
        put(one.store, 30, topic="other")
        await two.follow(one)
        assert "the two logs differ at" in await two.becomes(LinkState.DIVERGED)


async def test_two_with_one_identity(tmp_path: Path) -> None:
    async with group(tmp_path) as (one, two):
        await one.lead(1)
        two.mode.own_id = 1
        await two.follow(one)
        await until(lambda: one.leader.refused[Why.OTHER_ID] > 0)
        assert "was a store directory copied?" in one.leader.turned_away()[0].text


async def test_who_does_not_lead_serves_nobody(tmp_path: Path) -> None:
    async with group(tmp_path) as (one, two):
        await two.follow(one)
        await until(lambda: one.leader.refused[Why.NOT_LEADING] > 0)


async def test_a_follower_that_comes_back_takes_its_own_place(tmp_path: Path) -> None:
    async with group(tmp_path) as (one, two):
        await one.lead(1)
        put(one.store, 10)
        _, dead = await asyncio.open_connection("127.0.0.1", one.port.port)  # and nobody has noticed
        dead.write(pack_hello(Hello(2)) + pack_epoch_report(one.store.log.max_offset))
        await in_sync(one, 1, 2)
        await two.follow(one)
        await until(lambda: one.leader.refused[Why.REPLACED] == 1)
        put(one.store, 10)
        await two.has(one)
        assert one.in_sync.members == {1, 2}
        assert one.in_sync.wanted() is None
        assert len(one.leader.followers) == 1
        dead.close()


async def test_another_process_with_a_followers_id_is_refused_while_that_is_there(tmp_path: Path) -> None:
    """A copied directory. The numbers of the processes are told to leaders that understand them."""
    async with group(tmp_path) as (one, two):
        await one.lead(1)
        put(one.store, 10)
        await two.follow(one)
        await in_sync(one, 1, 2)
        first = next(iter(one.leader.followers))
        assert isinstance(first, EpochConnection)
        first.start = 7
        _, copy = await asyncio.open_connection("127.0.0.1", one.port.port)
        copy.write(pack_hello(Hello(2), 8))
        await until(lambda: one.leader.refused[Why.OTHER_ID] == 1)
        text = one.leader.turned_away()[0].text
        assert f"so does another process, which is connected from {first.address}" in text
        assert next(iter(one.leader.followers)) is first
        first.close()  # the first one ends
        await until(lambda: not one.leader.followers or first not in one.leader.followers)
        copy.close()


async def test_a_learner_is_never_in_the_set(tmp_path: Path) -> None:
    async with group(tmp_path) as (one, two):
        await one.lead(1)
        two.mode.is_learner = True
        await two.follow(one)
        put(one.store, 10)
        await two.has(one)
        assert one.in_sync.wanted() is None
        assert [status.is_learner for status in one.in_sync.status()] == [False, True]


# --- the disk ----------------------------------------------------------------------------------------------


async def test_an_epoch_is_on_disk_before_its_first_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = asyncio.Event()
    heard = EpochHistory.heard

    async def slowly(self: EpochHistory, epoch: Epoch) -> None:
        await go_on.wait()
        await heard(self, epoch)

    monkeypatch.setattr(EpochHistory, "heard", slowly)
    async with group(tmp_path) as (one, two):
        await one.lead(1)
        put(one.store, 100)
        await two.follow(one)
        await until(lambda: len(one.leader.followers) == 1 and one.in_sync.status()[-1].acked == 0)
        await asyncio.sleep(0.05)
        assert two.store.log.max_offset == 0
        go_on.set()
        await two.has(one)


async def test_an_epoch_that_cannot_be_noted_ends_the_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(self: EpochHistory, epoch: Epoch) -> None:
        raise StoreError("no room for epochs")

    async with group(tmp_path) as (one, two):
        monkeypatch.setattr(EpochHistory, "heard", fails)
        await one.lead(1)
        put(one.store, 100)
        await two.follow(one)
        assert "no room for epochs" in await two.becomes(LinkState.NOT_WRITABLE)
        assert two.store.log.max_offset == 0


async def test_a_follower_that_starts_again_goes_on(tmp_path: Path) -> None:
    async with replica_at(tmp_path / "1", 1) as one:
        await one.lead(1)
        for number in range(1, 4):
            put(one.store, 300)
            async with replica_at(tmp_path / "2", 2) as two:
                await two.follow(one)
                await two.has(one)
            await one.history.begin(number + 1, one.store.log.max_offset)
        assert [epoch.number for epoch in two.history.entries] == [1, 2, 3]
