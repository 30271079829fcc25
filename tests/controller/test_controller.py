"""The controller over real sockets, with brokers as it sees them, and time that is moved by hand."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from kerolox.controller.carriers.carrier import LeadingController
from kerolox.controller.carriers.document import StateUnusable
from kerolox.controller.carriers.embedded import EmbeddedCarrier
from kerolox.controller.controller import Controller
from kerolox.controller.options import ControllerOptions
from kerolox.errors import OptionError
from kerolox.net.dialer import Dialer
from kerolox.options import load
from kerolox.protocol.bodies.controller import BrokerReplicasInfo, ElectedMaster, SyncStateSet
from kerolox.protocol.bodies.properties_text import read_properties
from kerolox.protocol.codes import RequestCode as Code
from kerolox.protocol.codes import ResponseCode
from kerolox.protocol.headers import controller as headers
from kerolox.testing.clock import ManualClock
from kerolox.testing.controller import running_controller

from .conftest import A, C, FakeBroker, until


async def pair(one: FakeBroker, two: FakeBroker) -> None:
    """Two brokers in sync; the first is master, in epoch 1."""
    await one.join()
    assert (await one.elect()).code == 0
    await two.join()
    assert (await one.alter(1, 2, epoch=1, set_epoch=1)).code == 0


async def test_two_brokers_begin(one: FakeBroker, two: FakeBroker) -> None:
    await one.join()
    elected = await one.elect()
    header = elected.header(headers.ElectMasterAnswer)
    assert (elected.code, header.master_broker_id, header.master_address) == (0, 1, one.address)
    assert (header.master_epoch, header.sync_state_set_epoch) == (1, 1)
    assert await two.take_id() == 2
    registered = await two.register()
    told = registered.header(headers.RegisterToControllerAnswer)
    assert (told.cluster_name, told.broker_name, told.master_broker_id) == (C, A, 1)
    assert (told.master_address, told.master_epoch, told.sync_state_set_epoch) == (one.address, 1, 1)
    assert SyncStateSet.decode(registered.body).sync_state_set == {1}
    answer = await two.heartbeat(epoch=1, max_offset=5)
    assert (answer.code, answer.remark) == (0, "Heart beat success")
    answer = await one.alter(1, 2, epoch=1, set_epoch=1)
    assert answer.header(headers.AlterSyncStateSetAnswer).new_sync_state_set_epoch == 2
    assert await two.master() == (1, one.address, 1)
    still = await two.elect()
    assert still.code == ResponseCode.CONTROLLER_MASTER_STILL_EXIST
    assert still.header(headers.ElectMasterAnswer).master_broker_id == 1
    assert ElectedMaster.decode(still.body).sync_state_set == {1, 2}


async def test_a_broker_that_asks_before_its_first_heartbeat_lives(one: FakeBroker) -> None:
    await one.take_id()
    await one.register()
    assert (await one.elect()).code == 0


async def test_a_killed_master_is_replaced_at_once(
    controller: Controller, one: FakeBroker, two: FakeBroker, clock: ManualClock
) -> None:
    await pair(one, two)
    await one.hang_up()
    await until(lambda: controller.groups[A].master == 2)
    await until(lambda: two.told)
    ((header, told),) = two.told
    assert (header.master_broker_id, header.master_address) == (2, two.address)
    assert (header.master_epoch, header.sync_state_set_epoch) == (2, 3)
    assert told == SyncStateSet(sync_state_set=frozenset({2}), sync_state_set_epoch=3)
    assert not one.told  # it does not live any more, and heard of the first time in its answer
    # Back again: a follower now, that is not in sync yet.
    answer = await one.register()
    assert answer.header(headers.RegisterToControllerAnswer).master_broker_id == 2
    assert (await one.elect()).code == ResponseCode.CONTROLLER_MASTER_STILL_EXIST


async def test_a_silent_master_is_replaced_after_its_time(
    controller: Controller, one: FakeBroker, two: FakeBroker, clock: ManualClock
) -> None:
    await pair(one, two)
    await one.heartbeat(heartbeat_timeout_mills=3000)
    await two.heartbeat(heartbeat_timeout_mills=60_000)
    await clock.advance(2.9)
    assert controller.groups[A].master == 1
    await clock.advance(6)
    await until(lambda: controller.groups[A].master == 2)
    assert controller.groups[A].master_epoch == 2


async def test_without_anybody_in_sync_there_is_no_master(
    controller: Controller,
    one: FakeBroker,
    two: FakeBroker,
    clock: ManualClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    await one.join()
    await one.elect()
    await two.join()
    await two.heartbeat(heartbeat_timeout_mills=600_000)
    await clock.advance(11)  # who was not heard by now is not there
    await one.heartbeat()
    await one.hang_up()
    await until(lambda: controller.groups[A].master is None)
    assert controller.groups[A].master_epoch == 2
    await clock.advance(60)  # many looks
    assert controller.groups[A].master_epoch == 2
    assert caplog.text.count("no_master group='broker-a' epoch=2") == 1
    assert (await two.elect()).code == ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
    # The one that is in sync comes back: found by the next look, if it does not ask itself.
    await one.heartbeat()
    await clock.advance(6)
    await until(lambda: controller.groups[A].master == 1)
    assert controller.groups[A].master_epoch == 3
    await until(lambda: two.told)


async def test_by_leave_one_that_is_not_in_sync_is_elected(
    controller: Controller, one: FakeBroker, two: FakeBroker, clock: ManualClock
) -> None:
    await one.join()
    await one.elect()
    await two.join()
    await two.heartbeat(heartbeat_timeout_mills=600_000)
    await one.hang_up()
    await until(lambda: controller.groups[A].master is None)
    answer = await two.ask(Code.UPDATE_CONTROLLER_CONFIG, body=b"enableElectUncleanMaster=true\n")
    assert answer.code == 0
    await clock.advance(6)
    await until(lambda: controller.groups[A].master == 2)


async def test_a_restarted_controller_knows_all_and_does_not_judge_at_once(
    clock: ManualClock, tmp_path: Path
) -> None:
    async with running_controller(clock=clock, directory=tmp_path) as first:
        await until(lambda: first.is_leader)
        async with FakeBroker(first) as one, FakeBroker(first) as two:
            await pair(one, two)
            before = first.groups
            await first.close()  # before the brokers
        assert before[A].master == 1
    async with running_controller(clock=clock, directory=tmp_path) as second:
        await until(lambda: second.is_leader)
        assert second.groups == before
        async with FakeBroker(second) as two:
            two.id = 2
            await two.heartbeat(heartbeat_timeout_mills=600_000)
            answer = await two.elect()
            assert answer.code == ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
            assert "just become leader" in (answer.remark or "")
            await clock.advance(6)  # a look for masters, which is too early
            assert second.groups[A].master == 1
            await clock.advance(10)
            await until(lambda: second.groups[A].master == 2)
            assert second.groups[A].master_epoch == 2


async def test_a_new_connection_keeps_its_broker_alive(
    controller: Controller, one: FakeBroker, two: FakeBroker
) -> None:
    await pair(one, two)
    async with FakeBroker(controller) as same:
        same.id = 1
        await same.heartbeat()
        await one.hang_up()
        await until(lambda: len(controller._server.peers) == 2)  # type: ignore[union-attr]
        assert controller.groups[A].master == 1


async def test_an_administrator_elects(controller: Controller, one: FakeBroker, two: FakeBroker) -> None:
    await pair(one, two)
    async with FakeBroker(controller) as tool:
        answer = await tool.elect(2, wanted=True)
        assert answer.code == 0
        members = ElectedMaster.decode(answer.body).broker_member_group
        assert members is not None
        assert members.broker_addrs == {1: one.address, 2: two.address}
        await until(lambda: one.told and two.told)
        assert [header.master_broker_id for header, _ in one.told] == [2]


async def test_notices_can_be_off(one: FakeBroker, two: FakeBroker, controller: Controller) -> None:
    await one.ask(Code.UPDATE_CONTROLLER_CONFIG, body=b"notifyBrokerRoleChanged=false")
    await pair(one, two)
    assert (await two.elect(2, wanted=True)).code == 0
    await two.master()
    assert not one.told
    assert not two.told


async def test_a_broker_that_cannot_be_told_keeps_nobody_waiting(
    controller: Controller, one: FakeBroker, two: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    await pair(one, two)
    header = headers.RegisterToControllerRequest(
        cluster_name=C, broker_name=A, broker_id=2, broker_address="127.0.0.1:1"
    )
    assert (await two.ask(Code.CONTROLLER_REGISTER_BROKER, header)).code == 0
    assert (await two.elect(2, wanted=True)).code == 0
    await until(lambda: one.told)
    await until(lambda: "notice_failed group='broker-a' address='127.0.0.1:1'" in caplog.text)


async def test_tools_see_the_groups(one: FakeBroker, two: FakeBroker) -> None:
    await pair(one, two)
    answer = await one.ask(Code.CONTROLLER_GET_SYNC_STATE_DATA, body=b'["broker-a","other"]')
    ((name, info),) = BrokerReplicasInfo.decode(answer.body).replicas_info_table.items()
    assert (name, info.master_broker_id, info.master_epoch, info.sync_state_set_epoch) == (A, 1, 1, 2)
    assert [(each.broker_id, each.alive) for each in info.in_sync_replicas] == [(1, True), (2, True)]
    assert (await one.ask(Code.CONTROLLER_GET_SYNC_STATE_DATA)).code == ResponseCode.SYSTEM_ERROR


async def test_tools_forget_brokers(
    controller: Controller, one: FakeBroker, two: FakeBroker, clock: ManualClock
) -> None:
    await pair(one, two)
    await clock.advance(11)
    await one.heartbeat()
    await two.heartbeat()

    async def forget(ids: str) -> Any:
        asked = headers.CleanBrokerDataRequest(broker_name=A, broker_controller_ids_to_clean=ids)
        return await one.ask(Code.CLEAN_BROKER_DATA, asked)

    refused = await forget("2")
    assert refused.code == ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA
    assert "are alive" in refused.remark
    await two.hang_up()
    await until(lambda: len(controller.live) == 1)
    assert (await forget("2")).code == 0
    assert set(controller.groups[A].replicas) == {1}


async def test_who_leads_and_the_options(controller: Controller, one: FakeBroker, tmp_path: Path) -> None:
    answer = await one.ask(Code.CONTROLLER_GET_METADATA_INFO)
    header = answer.header(headers.ControllerMetadataAnswer)
    assert (header.group, header.controller_leader_id, header.is_leader) == ("group1", "n0", True)
    assert header.controller_leader_address == controller.address
    assert header.peers == f"n0:{controller.address};"
    shown = read_properties((await one.ask(Code.GET_CONTROLLER_CONFIG)).body)
    assert shown["enableElectUncleanMaster"] == "false"
    assert shown["controllerListenPort"] == str(controller.port)
    refused = await one.ask(Code.UPDATE_CONTROLLER_CONFIG, body=b"configStorePath=/x")
    assert refused.code == ResponseCode.NO_PERMISSION
    refused = await one.ask(Code.UPDATE_CONTROLLER_CONFIG, body=b"controllerStorePath=/x")
    assert "restart" in (refused.remark or "")
    changed = await one.ask(Code.UPDATE_CONTROLLER_CONFIG, body=b"scanInactiveMasterInterval=1000")
    assert changed.code == 0
    assert "scanInactiveMasterInterval=1000" in (tmp_path / "controller.properties").read_text()


async def test_what_is_missing_is_named(one: FakeBroker) -> None:
    for code, header, field in (
        (Code.CONTROLLER_REGISTER_BROKER, headers.RegisterToControllerRequest(), "brokerName"),
        (Code.CONTROLLER_APPLY_BROKER_ID, headers.ApplyBrokerIdRequest(cluster_name=C), "brokerName"),
        (Code.CONTROLLER_GET_NEXT_BROKER_ID, headers.NextBrokerIdRequest(broker_name=A), "clusterName"),
        (Code.CONTROLLER_GET_REPLICA_INFO, headers.ReplicaInfoRequest(), "brokerName"),
        (Code.CONTROLLER_ELECT_MASTER, headers.ElectMasterRequest(), "brokerName"),
    ):
        answer = await one.ask(code, header)
        assert answer.code == ResponseCode.CONTROLLER_INVALID_REQUEST
        assert field in (answer.remark or "")
    answer = await one.ask(Code.PULL_MESSAGE)
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


async def test_one_that_does_not_lead_says_so(
    controller: Controller, one: FakeBroker, two: FakeBroker
) -> None:
    await pair(one, two)
    carrier = controller._carrier
    assert isinstance(carrier, EmbeddedCarrier)
    carrier._set_leader(LeadingController("n9", "elsewhere:1", 99))
    await until(lambda: not controller.is_leader)
    for answer in (await one.elect(), await one.register(), await one.alter(1, epoch=1, set_epoch=2)):
        assert answer.code == ResponseCode.CONTROLLER_NOT_LEADER
        assert answer.remark == "The controller is not in leader state"
    # Heard all the same; but a master must not believe that nobody else is elected.
    before = len(controller.live)
    one.id = 77
    assert (await one.heartbeat()).code == ResponseCode.CONTROLLER_NOT_LEADER
    assert len(controller.live) == before + 1
    one.id = 1
    told = (await one.ask(Code.CONTROLLER_GET_METADATA_INFO)).header(headers.ControllerMetadataAnswer)
    assert (told.controller_leader_id, told.controller_leader_address) == ("n9", "elsewhere:1")
    assert told.is_leader is False
    carrier._set_leader(None)  # and away again
    await until(lambda: controller.is_leader)
    assert controller.groups[A].master == 1


async def test_a_leader_that_does_not_know_yet_changes_nothing(
    controller: Controller, one: FakeBroker, two: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stalled while another one began to lead: what it decides fails at the commit."""
    await pair(one, two)
    # Nobody tells it.
    monkeypatch.setattr(controller._carrier, "_leader", LeadingController("n9", "elsewhere:1", 99))
    before = (await controller._carrier.load()).state
    assert (await one.elect(2, wanted=True)).code == ResponseCode.CONTROLLER_NOT_LEADER
    assert (await controller._carrier.load()).state == before
    assert not controller.is_leader


async def test_what_cannot_be_kept_is_not_answered_as_done(
    one: FakeBroker, two: FakeBroker, tmp_path: Path
) -> None:
    await pair(one, two)
    directory = tmp_path / "state"
    away = directory.rename(directory.with_name("away"))
    directory.write_text("in the way")  # a file where the directory was
    refused = await one.elect(2, wanted=True)
    assert refused.code != 0
    assert "could not be written" in (refused.remark or "")
    assert await two.master() == (1, one.address, 1)
    directory.unlink()
    away.rename(directory)
    assert (await one.elect(2, wanted=True)).code == 0
    assert await two.master() == (2, two.address, 2)


async def test_a_damaged_state_keeps_it_from_starting(tmp_path: Path, clock: ManualClock) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "controller.state").write_text("kerolox-controller 1 00000000 5\n{}\n")
    with pytest.raises(StateUnusable, match=r"controller\.state cannot be used"):
        async with running_controller(directory=tmp_path, clock=clock):
            pass


def test_peers_as_rocketmq_has_them() -> None:
    def of(text: str) -> ControllerOptions:
        return load(ControllerOptions, file_text=text, file_name="controller.conf").options

    assert of("").own_peer is None
    own = of("controllerDLegerPeers=n0-10.0.0.5:9878\ncontrollerDLegerSelfId=n0")
    assert own.own_peer == ("n0", "10.0.0.5", 9878)
    several = "controllerDLegerPeers=n0-10.0.0.5:1;n1-[::1]:2\ncontrollerDLegerSelfId=n1\n"
    with pytest.raises(OptionError, match="shared state in etcd"):
        of(several).own_peer  # noqa: B018
    own = of(several + "controllerCarrier=etcd\n")
    assert own.own_peer is not None
    assert (own.own_peer.address, [peer.id for peer in own.all_peers]) == ("[::1]:2", ["n0", "n1"])
    for wrong in ("", "10.0.0.1", "ftp://10.0.0.1:1", "http://10.0.0.1:x"):
        with pytest.raises(OptionError, match="etcdEndpoints"):
            of(f"controllerCarrier=etcd\netcdEndpoints={wrong}").etcd  # noqa: B018
    there = of("controllerCarrier=etcd\netcdEndpoints=http://a:1,https://[::1]:2/;c:3").etcd
    assert there.endpoints == (("a:1", False), ("[::1]:2", True), ("c:3", False))
    for wrong in ("n0-1.2.3.4:1;n1-1.2.3.5:1", "n1-1.2.3.4:1", "n0-1.2.3.4", "n0"):
        with pytest.raises(OptionError, match="controllerDLegerPeers"):
            of(f"controllerDLegerPeers={wrong}").own_peer  # noqa: B018
    with pytest.raises(OptionError, match="jRaft"):
        of("controllerType=jRaft")
    assert of("controllerType=DLedger").self_id == "n0"


async def test_the_address_of_the_peers_is_told(tmp_path: Path) -> None:
    async with running_controller() as other:
        port = other.port  # free when it is closed
    async with running_controller(peers=f"n0-localhost:{port}") as controller, Dialer() as dialer:
        assert controller.port == port
        await until(lambda: controller.is_leader)
        answer = await dialer.call(controller.address, Code.CONTROLLER_GET_METADATA_INFO)
        told = answer.header(headers.ControllerMetadataAnswer)
        assert told.controller_leader_address == f"localhost:{port}"


async def test_names_that_nobody_gave_take_no_room(
    controller: Controller, one: FakeBroker, two: FakeBroker
) -> None:
    await pair(one, two)
    for number in range(20):
        async with FakeBroker(controller, name=f"invented-{number}") as invented:
            invented.id = 1
            answer = await invented.heartbeat()
            assert answer.code == ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
    assert len(controller.live) == 2
