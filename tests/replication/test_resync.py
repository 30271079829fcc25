"""A follower that was refused is taken back to what its leader has, and goes on copying."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kerolox.broker.broker import Broker
from kerolox.broker.options import BrokerOptions, BrokerRole
from kerolox.net.dialer import Dialer
from kerolox.replication.leader_questions import LeaderQuestions
from kerolox.replication.link_state import LinkState
from kerolox.replication.own_log import OwnLog
from kerolox.replication.parting import CannotCompare, Found, Parting, find_parting
from kerolox.replication.resync import ABOUT, LeaderHasLess, carry_out, check_worth, store_options
from kerolox.store.disk.files import Files
from kerolox.store.errors import DiskFull, StoreError
from kerolox.store.offline.layout import find_layout
from kerolox.store.offline.verify import verify
from kerolox.testing.broker import SMALL
from kerolox.testing.faults import FaultyFiles

from .kit import FILE, ha_status, put, raw, until

SIZES: dict[str, Any] = {**SMALL, "commit_log_file_bytes": FILE, "disk_free_enough": 1}


def options_at(path: Path, **more: Any) -> BrokerOptions:
    return BrokerOptions(
        store_path=str(path / "store"), bind_address="127.0.0.1", listen_port=0, broker_name=path.name,
        advertised_host="127.0.0.1", **{**SIZES, **more},
    )  # fmt: skip


@asynccontextmanager
async def leading(path: Path) -> AsyncIterator[Broker]:
    async with Broker(options_at(path / "leader")) as broker:
        yield broker


@asynccontextmanager
async def following(path: Path, leader: Broker) -> AsyncIterator[Broker]:
    options = options_at(path / "follower", role=BrokerRole.SLAVE, broker_id=1)
    async with Broker(options) as broker:
        broker.replication.follower.lead_by(leader.endpoints.ha_address, leader.address)
        yield broker


async def history(path: Path, name: str, *counts: int, size: int = 300) -> None:
    """Messages are stored in this broker's store while nobody else is there."""
    async with Broker(options_at(path / name)) as broker:
        for count in counts:
            put(broker.store, count, size=size)
        broker.tables.offsets.commit("T", "readers", 0, broker.store.queues.max_offset("T", 0))


def copy(path: Path, source: str, target: str) -> None:
    shutil.copytree(path / source, path / target)


async def parting_of(path: Path, leader: Broker) -> Parting:
    layout = find_layout(path / "follower/store", options_at(path / "follower"))
    async with Dialer() as dialer:
        return await find_parting(OwnLog(layout), LeaderQuestions(dialer, leader.address))


async def resync(path: Path, leader: Broker, files: Files | None = None) -> tuple[Parting, str]:
    parting = await parting_of(path, leader)
    options = options_at(path / "follower")
    layout = find_layout(path / "follower/store", options)
    aside = await carry_out(parting, layout, store_options(layout, options), leader.address, files=files)
    return parting, aside


async def copies_on(path: Path, leader: Broker) -> None:
    """It has what the leader has, and gets what comes."""
    async with following(path, leader) as follower:
        put(leader.store, 7)
        await until(
            lambda: follower.store.log.max_offset == leader.store.log.max_offset,
            lambda: follower.replication.follower.text,
        )
        low = max(leader.store.log.min_offset, follower.store.log.min_offset)
        assert raw(follower.store, low) == raw(leader.store, low)
        for queue_id in range(3):
            assert follower.store.queues.max_offset("T", queue_id) == leader.store.queues.max_offset(
                "T", queue_id
            )
            offset = follower.tables.offsets.offset("T", "readers", queue_id)
            assert offset <= leader.store.queues.max_offset("T", queue_id)
    report = verify(find_layout(path / "follower/store", options_at(path / "follower")))
    assert report.clean, report.findings


def said(aside: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((Path(aside) / ABOUT).read_text())
    return told


def kept(aside: str) -> bytes:
    """What the folder has of the log."""
    return b"".join(path.read_bytes() for path in sorted((Path(aside) / "commitlog").iterdir()))


# A file of 64 KiB has room for some 150 messages of 300 bytes: the logs part in the first or a later one.
BEFORE = pytest.mark.parametrize("before", [10, 500])


@BEFORE
@pytest.mark.parametrize("longer", ["leader", "follower", "neither"])
async def test_two_that_went_on_differently(tmp_path: Path, before: int, longer: str) -> None:
    await history(tmp_path, "leader", before)
    copy(tmp_path, "leader", "follower")
    here, there = {"leader": (3, 400), "follower": (400, 3), "neither": (50, 50)}[longer]
    await history(tmp_path, "leader", there)
    await asyncio.sleep(0.002)  # another millisecond, so that messages of one place are not the same
    await history(tmp_path, "follower", here)
    async with leading(tmp_path) as leader:
        if longer == "neither":
            own = OwnLog(find_layout(tmp_path / "follower/store", options_at(tmp_path)))
            assert own.end == leader.store.log.max_offset
        had = (tmp_path / "follower/store/commitlog" / f"{0:020d}").read_bytes()
        parting, aside = await resync(tmp_path, leader)
        assert parting.found is Found.DIVERGED
        assert parting.behind.records == here
        assert 0 < parting.common_ms <= parting.behind.first_ms <= parting.behind.last_ms
        assert 0 < parting.leader_ms < parting.behind.first_ms
        told = said(aside)
        assert (told["messages"], told["from"], told["to"]) == (here, parting.common_end, parting.own.end)
        assert kept(aside)[: len(had)] == had or before == 500
        assert parting.behind.end - parting.behind.begin == parting.own.end - parting.keep_to
        assert (Path(aside) / "config/consumerOffset.json").exists()
        await copies_on(tmp_path, leader)


@BEFORE
async def test_one_that_goes_on_where_the_leader_ends(tmp_path: Path, before: int) -> None:
    await history(tmp_path, "leader", before)
    copy(tmp_path, "leader", "follower")
    await history(tmp_path, "follower", 300)
    async with leading(tmp_path) as leader:
        end = leader.store.log.max_offset
        async with following(tmp_path, leader) as follower:
            await until(lambda: follower.replication.follower.state is LinkState.LEADER_BEHIND)
            text = follower.replication.follower.text
            command = f"`kerolox store resync {follower.store.root} --leader {leader.address}`"
            assert command in text
            # Wherever people look.
            ha = ha_status(follower)
            assert ha.ha_client_runtime_info.link_text == text
            assert follower.replication.runtime_info()["followerState"] == text
        parting, aside = await resync(tmp_path, leader)
        assert (parting.found, parting.common_end) == (Found.AHEAD, end)
        assert (parting.behind.records, parting.leader_ms) == (300, 0)
        await copies_on(tmp_path, leader)
        lost = (Path(aside) / "commitlog").iterdir()
        assert {path.stat().st_size for path in lost} == {FILE}  # files that any tool reads


async def test_one_whose_next_message_was_deleted(tmp_path: Path) -> None:
    await history(tmp_path, "leader", 50)
    copy(tmp_path, "leader", "follower")
    async with leading(tmp_path) as leader:
        put(leader.store, 1000)
        await leader.store.flusher.flush_all()
        leader.store.segments.delete_before(2 * FILE + 1)
        async with following(tmp_path, leader) as follower:
            await until(lambda: follower.replication.follower.state is LinkState.TOO_OLD)
            assert "`kerolox store resync" in follower.replication.follower.text
        parting, aside = await resync(tmp_path, leader)
        assert (parting.found, parting.common_end) == (Found.TOO_OLD, None)
        assert (parting.behind.records, parting.keep_to) == (50, 0)
        assert said(aside)["files"] == [f"{0:020d}"]
        async with following(tmp_path, leader) as follower:  # all of it, from where the leader begins
            await until(lambda: follower.store.log.max_offset == leader.store.log.max_offset)
            assert follower.store.log.min_offset == leader.store.log.min_offset == 2 * FILE
            assert raw(follower.store, 2 * FILE) == raw(leader.store, 2 * FILE)
            assert follower.tables.offsets.offset("T", "readers", 0) <= follower.store.queues.max_offset(
                "T", 0
            )


async def test_two_that_have_nothing_in_common(tmp_path: Path) -> None:
    await history(tmp_path, "leader", 900)
    await history(tmp_path, "follower", 400, size=500)
    async with leading(tmp_path) as leader:
        parting = await parting_of(tmp_path, leader)
        assert (parting.found, parting.behind.records) == (Found.NOTHING_COMMON, 400)
        check_worth(parting, leader.address)  # the leader has more
        _, aside = await resync(tmp_path, leader)
        assert len(said(aside)["files"]) == 3
        await copies_on(tmp_path, leader)


@pytest.mark.parametrize("written", [0, 20])
async def test_a_leader_that_came_back_empty_is_not_obeyed(tmp_path: Path, written: int) -> None:
    """With a new disk, and maybe a few messages on it: the copy here is the better one."""
    await history(tmp_path, "follower", 300)
    await history(tmp_path, "leader", *([written] if written else []))
    async with leading(tmp_path) as leader:
        parting = await parting_of(tmp_path, leader)
        assert parting.found is Found.NOTHING_COMMON
        with pytest.raises(LeaderHasLess) as refused:
            check_worth(parting, leader.address)
        text = str(refused.value)
        assert "this store has more than the leader" in text
        assert f"0 to {parting.own.end}" in text
        assert ("is empty" in text) is not bool(written)
        assert "Make this broker the leader instead" in text
        await resync(tmp_path, leader)  # --anyway
        await copies_on(tmp_path, leader)


async def test_one_that_only_lags_is_left_alone(tmp_path: Path) -> None:
    await history(tmp_path, "leader", 500)
    copy(tmp_path, "leader", "follower")
    await history(tmp_path, "leader", 100)
    async with leading(tmp_path) as leader:
        parting = await parting_of(tmp_path, leader)
        assert parting.found is Found.BEGINNING
        assert parting.keep_to == parting.own.end
        await copies_on(tmp_path, leader)


async def test_a_leader_with_files_of_another_size_is_no_leader_for_it(tmp_path: Path) -> None:
    await history(tmp_path, "follower", 10)
    options = options_at(tmp_path / "leader", commit_log_file_bytes=FILE // 4)
    async with Broker(options) as leader:
        put(leader.store, 300)
        await leader.store.flusher.flush_all()
        leader.store.segments.delete_before(FILE // 4)
        with pytest.raises(CannotCompare, match="mappedFileSizeCommitLog"):
            await parting_of(tmp_path, leader)


async def test_promoted_by_hand_and_the_old_leader_put_back(tmp_path: Path) -> None:
    """The leader dies with messages nobody else has; its follower leads; the old one returns as a follower.
    It is refused, which both sides say, and follows once it was taken back."""
    await history(tmp_path, "follower", 200)  # the old leader, for it will follow
    copy(tmp_path, "follower", "leader")
    await history(tmp_path, "follower", 5)  # acknowledged by it alone
    await asyncio.sleep(0.002)
    await history(tmp_path, "leader", 20)  # the new one went on
    async with leading(tmp_path) as leader:
        async with following(tmp_path, leader) as old:
            had = raw(old.store)
            await until(lambda: old.replication.follower.state is LinkState.DIVERGED)
            text = old.replication.follower.text
            assert "one of the two brokers led while the other did not follow" in text.lower()
            assert f"`kerolox store resync {old.store.root} --leader {leader.address}`" in text
            assert raw(old.store) == had
            await until(lambda: not list(leader.store.replicas))  # it does not count as a copy
        parting, aside = await resync(tmp_path, leader)
        assert (parting.found, parting.behind.records) == (Found.DIVERGED, 5)
        await copies_on(tmp_path, leader)
        assert said(aside)["messages"] == 5


# --- killed ------------------------------------------------------------------------------------------------


class Dying(FaultyFiles):
    """The process dies before a chosen change of the disk."""

    left = -1

    def _refuse_writes(self, action: str, path: str, offset: int | None = None) -> None:
        super()._refuse_writes(action, path, offset)
        self._change(path)

    def _before_sync(self, path: str) -> None:
        super()._before_sync(path)
        self._change(path)

    def _change(self, path: str) -> None:
        with self._lock:
            if self.left < 0:
                return
            self.left -= 1
            if self.left < 0:
                self.kill()
                self.read_only = True
                raise StoreError(f"died before {path}")


async def test_killed_at_any_moment_it_is_as_before_or_as_after(tmp_path: Path) -> None:
    await history(tmp_path, "leader", 250)
    copy(tmp_path, "leader", "original")
    await history(tmp_path, "original", 300, size=500)
    async with leading(tmp_path) as leader:
        common = leader.store.log.max_offset
        ended: set[str] = set()
        for number in range(0, 2000, 7):
            shutil.rmtree(tmp_path / "follower", ignore_errors=True)
            copy(tmp_path, "original", "follower")
            files = Dying()
            files.left = number
            try:
                await resync(tmp_path, leader, files)
            except (StoreError, OSError):
                assert files.left < 0
            died = files.left < 0
            asides = list((tmp_path / "follower/store").glob("resync-*"))
            whole = [path for path in asides if not path.name.endswith(".unfinished")]
            async with Broker(options_at(tmp_path / "follower", role=BrokerRole.SLAVE, broker_id=1)) as found:
                end = found.store.log.max_offset
                if end == common:
                    ended.add("after")
                    assert len(whole) == 1  # first all was put aside
                    assert said(str(whole[0]))["messages"] == 300
                    reached = found.tables.offsets.offset("T", "readers", 0)
                    assert reached == found.store.queues.max_offset("T", 0)
                else:
                    ended.add("before")
                    assert sum(found.store.queues.max_offset("T", queue_id) for queue_id in range(3)) == 550
                assert not (tmp_path / "follower/store/kerolox.cut").exists()
            if not died:
                assert end == common
                break
        else:
            pytest.fail("it never ends")
        assert ended == {"before", "after"}
        await copies_on(tmp_path, leader)


async def test_without_room_for_what_goes_nothing_is_changed(tmp_path: Path) -> None:
    await history(tmp_path, "leader", 10)
    copy(tmp_path, "leader", "follower")
    await history(tmp_path, "follower", 20)
    async with leading(tmp_path) as leader:
        files = FaultyFiles()
        files.fill(1000)
        with pytest.raises(DiskFull):
            await resync(tmp_path, leader, files)
        assert not list((tmp_path / "follower/store").glob("resync-*"))
        async with Broker(options_at(tmp_path / "follower")) as found:
            assert sum(found.store.queues.max_offset("T", queue_id) for queue_id in range(3)) == 30
