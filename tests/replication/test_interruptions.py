"""Connections that break, stall and come back; brokers that change places."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from kerolox.broker.broker import Broker
from kerolox.broker.options import BrokerOptions
from kerolox.protocol.codes import RequestCode
from kerolox.replication.link_state import LinkState
from kerolox.replication.turned_away import Why
from kerolox.store.disk.files import Files
from kerolox.store.errors import DiskFull, StoreError
from kerolox.testing.broker import SMALL
from kerolox.testing.clock import ManualClock
from kerolox.testing.faults import FaultyFiles

from .kit import FILE, Between, Following, Leading, Settings, ha_status, pair, put, raw, store_at, until


async def test_a_connection_cut_at_any_byte(tmp_path: Path) -> None:
    async with store_at(tmp_path / "leader") as leads, Leading(leads) as leading:
        put(leads, 3, size=60)
        # Of the first record, its head, and what follows: all places.
        for most in (*range(1, 40, 3), 100, 150, 190, 230, 300):
            async with (
                Between(leading.address) as between,
                store_at(tmp_path / f"follower-{most}") as follows,
            ):
                between.most = most
                async with Following(follows, between.address) as following:
                    await following.has(leads)


async def test_it_goes_on_after_cuts_while_messages_come(tmp_path: Path) -> None:
    async with (
        store_at(tmp_path / "leader") as leads,
        Leading(leads) as leading,
        Between(leading.address) as between,
        store_at(tmp_path / "follower") as follows,
        Following(follows, between.address) as following,
    ):
        for turn in range(6):
            put(leads, 100)
            between.most = 10_000 + turn * 1111
            await until(lambda: following.follower.copying or following.follower.state is LinkState.LOST)
            await asyncio.sleep(0.05)
        between.most = None
        await following.has(leads)


async def test_silence_ends_the_connection_on_both_sides(tmp_path: Path) -> None:
    settings = Settings(ha_heartbeat_ms=50, ha_silence_ms=300)
    async with (
        store_at(tmp_path / "leader") as leads,
        Leading(leads, settings) as leading,
        Between(leading.address) as between,
        store_at(tmp_path / "follower") as follows,
        Following(follows, between.address, settings) as following,
    ):
        put(leads, 5)
        await following.has(leads)
        between.open.clear()
        await until(lambda: following.follower.state is LinkState.LOST)
        assert "the leader sent nothing for" in following.follower.text
        await until(lambda: leading.told.names == [])
        between.open.set()
        put(leads, 5)
        await following.has(leads)


async def test_a_black_hole_is_left_after_twenty_seconds(tmp_path: Path) -> None:
    """With RocketMQ's times: nothing arrives, nothing is closed, and nobody says so."""
    settings = Settings(ha_heartbeat_ms=5000, ha_silence_ms=20_000)
    clock = ManualClock()
    async with (
        store_at(tmp_path / "leader") as leads,
        Leading(leads, settings, watched=False, clock=clock) as leading,
        Between(leading.address) as between,
        store_at(tmp_path / "follower") as follows,
        Following(follows, between.address, settings, clock) as following,
    ):
        put(leads, 5)
        await following.has(leads)
        for _ in range(12):  # a minute in which nothing is written: heartbeats keep it
            before = between.passed
            await clock.advance(5.1)
            await until(lambda before=before: between.passed >= before + 2, lambda: between.passed)  # type: ignore[misc]
        assert following.follower.copying
        link = following.follower.link
        between.open.clear()
        await clock.advance(19.5)
        assert following.follower.link is link
        assert following.follower.copying
        assert len(list(leads.replicas)) == 1
        await clock.advance(2.0)
        await until(lambda: following.follower.state is LinkState.LOST)
        assert "the leader sent nothing for" in following.follower.text
        await until(lambda: not list(leads.replicas))
        assert leading.leader.refused[Why.SILENT] == 1
        between.cut()
        between.open.set()
        put(leads, 5)
        for _ in range(10):
            await clock.advance(1.0)
        await following.has(leads)


async def test_a_heartbeat_keeps_an_idle_connection(tmp_path: Path) -> None:
    settings = Settings(ha_heartbeat_ms=50, ha_silence_ms=300)
    async with pair(tmp_path, put, settings) as (leading, following):
        await following.has(leading.store)
        link = following.follower.link
        await asyncio.sleep(0.8)
        assert following.follower.link is link
        assert following.follower.copying


async def test_a_log_begins_elsewhere_only_while_it_is_empty(tmp_path: Path) -> None:
    async with store_at(tmp_path) as store:
        await store.begin_at(2 * FILE)
        assert (store.log.min_offset, store.log.max_offset, store.progress.confirmed) == (2 * FILE,) * 3
        with pytest.raises(StoreError, match=r"cannot begin the log at 5"):
            await store.begin_at(5)
    async with store_at(tmp_path) as store:  # as it was left
        assert store.log.min_offset == store.log.max_offset == 2 * FILE
        await store.begin_at(FILE)
        put(store)
        with pytest.raises(StoreError, match=f"it holds {FILE} to"):
            await store.begin_at(0)


def a_broker(path: Path, files: Files | None = None) -> Broker:
    options: dict[str, Any] = {**SMALL, "commit_log_file_bytes": FILE, "disk_free_enough": 1}
    return Broker(
        BrokerOptions(
            store_path=str(path),
            bind_address="127.0.0.1",
            listen_port=0,
            broker_name=path.name,
            advertised_host="127.0.0.1",
            **options,
        ),
        files=files,
    )


async def test_brokers_change_places(tmp_path: Path) -> None:
    async with a_broker(tmp_path / "one") as one, a_broker(tmp_path / "two") as two:
        put(one.store, 700)
        await two.leadership.follow("the other one leads")
        assert two.replication.follower.state is LinkState.NO_LEADER
        two.replication.follower.lead_by(one.endpoints.ha_address, one.address)
        await until(lambda: two.store.log.max_offset == one.store.log.max_offset)
        assert raw(two.store) == raw(one.store)
        assert two.store.queues.max_offset("T", 0) == one.store.queues.max_offset("T", 0)
        await until(lambda: [each.behind for each in one.replication.leader.followers] == [0])
        told, of = (ha_status(each) for each in (one, two))
        (row,) = told.ha_connection_info
        end = one.store.log.max_offset
        assert (told.master, told.in_sync_slave_nums, told.master_commit_log_max_offset) == (True, 1, end)
        assert (row.diff, row.in_sync, row.slave_ack_offset, row.transfer_from_where) == (0, True, end, end)
        assert not of.master
        assert of.ha_client_runtime_info.master_addr == one.endpoints.ha_address
        assert of.ha_client_runtime_info.max_offset == end
        assert of.ha_client_runtime_info.last_read_timestamp > 0
        assert two.replication.runtime_info()["followerState"] == LinkState.COPYING.value
        # The new leader goes on where the old one ended: the queues too.
        await one.leadership.follow("it is tired")
        await two.leadership.lead()
        assert two.replication.follower.state is LinkState.OFF
        ends = [two.store.queues.max_offset("T", queue_id) for queue_id in range(3)]
        put(two.store, 3)
        assert [two.store.queues.max_offset("T", queue_id) for queue_id in range(3)] == [
            end + 1 for end in ends
        ]
        one.replication.follower.lead_by(two.endpoints.ha_address, two.address)
        await until(lambda: one.store.log.max_offset == two.store.log.max_offset)
        assert raw(two.store) == raw(one.store)
        assert two.replication.follower.refusals == one.replication.follower.refusals == 0


async def test_half_a_record_is_cut_off_before_a_broker_leads(tmp_path: Path) -> None:
    async with a_broker(tmp_path / "one") as one, a_broker(tmp_path / "two") as two:
        put(one.store, 5)
        await two.leadership.follow("the other one leads")
        two.store.log.append_raw(raw(one.store)[:-7])
        assert two.store.log.whole_end < two.store.log.max_offset
        whole = two.store.log.whole_end
        await two.leadership.lead()
        assert two.store.log.max_offset == whole
        put(two.store, 3)
        assert two.store.log.record_at(whole)
        assert sum(two.store.queues.max_offset("T", queue_id) for queue_id in range(3)) == 7


async def test_a_broker_without_room_to_cut_half_a_record_off_goes_on_following(tmp_path: Path) -> None:
    files = FaultyFiles()
    async with a_broker(tmp_path / "one") as one, a_broker(tmp_path / "two", files) as two:
        put(one.store, 5)
        await two.leadership.follow("the other one leads")
        two.store.log.append_raw(raw(one.store)[:-7])
        await two.store.housekeeper.flush()  # a round that finds no room would say so, too
        files.fill()
        with pytest.raises(DiskFull):
            await two.leadership.lead()
        files.make_room()
        two.replication.follower.lead_by(one.endpoints.ha_address, one.address)
        await until(lambda: two.store.log.max_offset == one.store.log.max_offset)
        put(one.store, 5)
        await until(lambda: two.store.log.max_offset == one.store.log.max_offset)
        await two.leadership.lead()
        assert two.leadership.leads


async def test_the_leader_is_asked_where_its_log_ends(tmp_path: Path) -> None:
    """28 says at once what a heartbeat would say later, or a leader of RocketMQ's never."""
    async with a_broker(tmp_path / "one") as one, a_broker(tmp_path / "two") as two:
        assert RequestCode.GET_BROKER_RUNTIME_INFO == 28
        put(two.store, 5)
        await two.leadership.follow("the other one leads")
        two.replication.follower.lead_by(one.endpoints.ha_address, one.address)
        await until(lambda: two.replication.follower.state is LinkState.LEADER_BEHIND)
        assert f"the leader's log holds 0 to 0 and this follower's 0 to {two.store.log.max_offset}" in (
            two.replication.follower.text
        )


async def test_a_follower_stops_at_any_moment(tmp_path: Path) -> None:
    """While it asks, connects or compares: none of these holds up who stops it."""
    async with pair(tmp_path, lambda store: put(store, 50)) as (leading, following):
        await following.has(leading.store)
        for turns in range(40):
            await following.follower.stop()
            await following.follower.start()
            for _ in range(turns):
                await asyncio.sleep(0)
            async with asyncio.timeout(30):
                await following.follower.stop()
        await following.follower.start()
        put(leading.store, 5)
        await following.has(leading.store)
