"""The controller's state is restored from an older copy, or a broker's store is; nothing acknowledged is lost
without an operator's word."""

from __future__ import annotations

import asyncio
import logging
import shutil
from pathlib import Path

import pytest

from kerolox import Message, Producer
from kerolox.client.admin.controllers import Controllers
from kerolox.errors import RequestFailed
from kerolox.net.dialer import Dialer
from kerolox.protocol.bodies.controller import ReplicasInfo
from kerolox.testing.controlled import RunningControlled, running_controlled

from .test_controlled import all_have, bodies

QUICK = {"alive_ms": 100, "alive_timeout_ms": 100, "controller_silence_ms": 2000, "who_leads_ms": 300}


async def send(group: RunningControlled, first: int, last: int) -> list[bytes]:
    """Messages that are acknowledged."""
    sent = [b"%d" % number for number in range(first, last)]
    async with Producer(group.nameserver_address, group="p") as producer:
        for body in sent:
            await producer.send(Message("T", body))
    return sent


async def restore(group: RunningControlled, copy: Path) -> None:
    """As OPERATIONS.md says: the copy takes the place of the state, and the controller starts again."""
    await group.stop_controller()
    shutil.copy(copy, Path(group.controller.options.store_path) / "controller.state")
    await group.start_controller()


def in_sync(group: RunningControlled) -> set[int]:
    known = group.controller.groups.get("broker-a")
    return set() if known is None else set(known.in_sync)


def said(group: RunningControlled, id: int) -> bool:
    """Whether the controller has heard how much a broker has."""
    sign = group.controller.live.view(["broker-a"]).of("broker-a").get(id)
    return sign is not None and sign.max_offset >= 0


async def told(group: RunningControlled) -> ReplicasInfo:
    async with Dialer() as dialer:
        controllers = Controllers(dialer, [group.controller.address])
        return await controllers.group(group.controller.address, "broker-a")


async def test_a_leader_tells_an_older_state_which_set_is_the_newest(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The restored state has broker 2 in sync, which lacks what was acknowledged since."""
    caplog.set_level(logging.INFO)
    copy = tmp_path / "copy"
    async with running_controlled(2, directory=tmp_path, **QUICK) as group:
        acked = await send(group, 0, 20)
        shutil.copy(tmp_path / "controller" / "controller.state", copy)
        await group.kill(2)
        await group.in_sync(1)
        acked += await send(group, 20, 60)
        await restore(group, copy)
        await group.until(lambda: in_sync(group) == {1}, "set learned")
        assert group.broker(1).broker.leadership.leads  # all the time
        acked += await send(group, 60, 70)
        assert "state_is_older group='broker-a' epoch=1 set_epoch=2 in_sync=[1, 2]" in caplog.text
        await group.until(lambda: not group.controller.groups["broker-a"].is_doubted, "state that is proven")
        await group.kill(1)
        await group.start_again(2)
        await asyncio.sleep(1.5)
        assert group.leader is None, "broker 2 lacks what was acknowledged"
        await group.start_again(1)
        assert await group.leading() is group.broker(1)
        await group.in_sync(2)
        await group.caught_up()
        await all_have(group, acked)


async def test_an_older_state_is_found_out_by_its_number_and_all_in_sync_are_asked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """All were stopped, and the first one back is the one that the restored state has in sync by mistake."""
    copy = tmp_path / "copy"
    async with running_controlled(2, directory=tmp_path, **QUICK) as group:
        acked = await send(group, 0, 20)
        shutil.copy(tmp_path / "controller" / "controller.state", copy)
        await group.kill(2)
        await group.in_sync(1)
        acked += await send(group, 20, 60)
        await group.kill(1)
        await restore(group, copy)
        await group.start_again(2)
        await group.until(lambda: said(group, 2), "heartbeat")
        await asyncio.sleep(12)  # a controller that begins to lead judges nobody before 10 s
        assert group.leader is None, "broker 2 lacks what was acknowledged"
        info = await told(group)
        assert info.waits_for == (1,)
        assert (
            "the controller's state is an older copy, and [1] of the in-sync replicas [1, 2]" in caplog.text
        )
        await group.start_again(1)
        assert await group.leading() is group.broker(1)
        await group.in_sync(2)
        await group.caught_up()
        await all_have(group, acked)
        assert (await told(group)).waits_for is None


async def test_by_an_operators_word_an_older_state_is_taken_as_it_is(tmp_path: Path) -> None:
    """Broker 1 will not come back."""
    copy = tmp_path / "copy"
    async with running_controlled(2, directory=tmp_path, **QUICK) as group:
        acked = await send(group, 0, 20)
        shutil.copy(tmp_path / "controller" / "controller.state", copy)
        await group.kill(2)
        await group.in_sync(1)
        await group.start_again(2)
        await group.in_sync(2)
        await group.stop_controller()
        await group.kill(1)
        await restore(group, copy)
        await group.until(lambda: said(group, 2), "heartbeat")
        async with Dialer() as dialer:
            controllers = Controllers(dialer, [group.controller.address])
            with pytest.raises(RequestFailed, match=r"older copy, and \[1\]"):
                await controllers.elect(group.controller.address, "broker-a", 2)
            await controllers.elect(group.controller.address, "broker-a", 2, accepted_loss=0)
        assert await group.leading() is group.broker(2)
        assert sorted(await bodies(group.broker(2))) == sorted(acked)
        await group.start_again(1)
        await group.in_sync(2)


async def test_a_store_restored_from_an_old_backup_does_not_lead(tmp_path: Path) -> None:
    """It is alone in its set. The controller knows how far its log was confirmed."""
    store, backup = tmp_path / "broker-1" / "store", tmp_path / "backup"
    async with running_controlled(1, directory=tmp_path, **QUICK) as group:
        await send(group, 0, 20)
        await group.stop(1)
        shutil.copytree(store, backup)
        await group.start_again(1)
        await group.leading()
        await send(group, 20, 60)
        end = group.broker(1).broker.store.log.max_offset
        await group.until(
            lambda: (
                (sign := group.controller.live.view(["broker-a"]).of("broker-a").get(1)) is not None
                and sign.kept == end
            ),
            "heartbeat that says how far the log is confirmed",
        )
        await group.kill(1)
        shutil.rmtree(store)
        shutil.copytree(backup, store)
        await group.start_again(1)
        await group.until(
            lambda: "bytes of that" in group.broker(1).broker.leadership.waits_for, "refusal with its reason"
        )
        assert group.leader is None
        lacks = end - group.broker(1).broker.store.log.max_offset
        assert lacks > 0
        info = await told(group)
        assert (info.confirmed, info.in_sync_replicas[0].lacks) == (end, lacks)
        # A controller that starts anew knows it, too.
        await group.stop_controller()
        await group.start_controller()
        await group.until(
            lambda: f"1 lacks {lacks} bytes" in group.broker(1).broker.leadership.waits_for, "the same"
        )
        async with Dialer() as dialer:
            controllers = Controllers(dialer, [group.controller.address])
            with pytest.raises(RequestFailed, match=f"1 lacks {lacks} bytes"):
                await controllers.elect(group.controller.address, "broker-a", 1, accepted_loss=lacks - 1)
            await controllers.elect(group.controller.address, "broker-a", 1, accepted_loss=lacks)
        await group.leading()
        await send(group, 60, 70)
        assert len(await bodies(group.broker(1))) == 30
        assert (await told(group)).in_sync_replicas[0].lacks is None
