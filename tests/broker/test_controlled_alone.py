"""One broker and its controller: its id, its start, what it is told, and the lease."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from kerolox import Message, Producer, ProducerOptions
from kerolox.broker.controlled.controllers import Controllers, split_controllers
from kerolox.broker.controlled.identity import Identity, NotThisBroker
from kerolox.broker.controlled.lease import Lease
from kerolox.broker.options import BrokerOptions
from kerolox.broker.role.mastership import Mastership, News, news
from kerolox.broker.role.settings import check_role
from kerolox.client.errors import SendFailed
from kerolox.controller.live import HEARTBEAT_TIMEOUT_S
from kerolox.errors import OptionError
from kerolox.net.dialer import Dialer
from kerolox.protocol.bodies.controller import EpochRange, EpochRanges, SyncStateSet
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.headers.controller import BrokerRoleChanged
from kerolox.store.state import Obstacle
from kerolox.testing.broker import RunningBroker, running_broker
from kerolox.testing.clock import ManualClock
from kerolox.testing.controlled import running_controlled
from kerolox.testing.controller import running_controller
from kerolox.testing.nameserver import running_nameserver
from kerolox.testing.network import Relay


def options_of(tmp_path: Path, controllers: str, **more: object) -> BrokerOptions:
    return BrokerOptions(
        store_path=str(tmp_path),
        broker_name="broker-a",
        controlled=True,
        controllers=controllers,
        **more,  # type: ignore[arg-type]
    )


async def until(condition: Callable[[], object], timeout_s: float = 10.0) -> None:
    for _ in range(int(timeout_s / 0.01)):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come to pass in time")


# --- options --------------------------------------------------------------------------------------


def test_what_goes_together(tmp_path: Path) -> None:
    # As the shipped files have it: neither is looked at.
    check_role(options_of(tmp_path, "127.0.0.1:9878", broker_id=-1))
    with pytest.raises(OptionError, match="controllerAddr"):
        check_role(options_of(tmp_path, ""))
    with pytest.raises(OptionError, match="no follower acts for one"):
        check_role(options_of(tmp_path, "127.0.0.1:9878", acting=True))
    with pytest.raises(OptionError, match="0 or more without enableControllerMode"):
        check_role(BrokerOptions(broker_id=-1))


def test_addresses_of_controllers() -> None:
    assert split_controllers("a:1; b:2;a:1,") == ["a:1", "b:2"]
    for wrong in ("", ";", "a", "a:b", "a:70000", ";".join(f"a:{port}" for port in range(1, 40))):
        with pytest.raises(OptionError, match="controllerAddr"):
            split_controllers(wrong)


async def test_controllers_behind_one_name(tmp_path: Path) -> None:
    async with running_controller() as controller:
        options = options_of(tmp_path, f"localhost:{controller.port}", controllers_by_name=True)
        controllers = Controllers(options, ManualClock())
        try:
            assert await controllers.find() == controller.address
            assert controller.address in controllers.addresses
            assert f"localhost:{controller.port}" not in controllers.addresses
        finally:
            await controllers.close()


# --- who leads, as it is told ---------------------------------------------------------------------


def test_only_what_is_newer_is_news() -> None:
    known = Mastership(epoch=3, id=1, address="a:1", in_sync=frozenset({1}), in_sync_epoch=5)

    def told(**other: object) -> News:
        values = {"epoch": 3, "id": 1, "address": "a:1", "in_sync_epoch": 5} | other
        return news(known, Mastership(**values))  # type: ignore[arg-type]

    assert told() is News.NONE
    assert told(epoch=4, id=2) is News.EPOCH
    assert told(epoch=4, id=0, address="") is News.EPOCH
    assert told(epoch=2, id=2, in_sync_epoch=9) is News.OLDER
    assert told(id=2) is News.OTHER_MASTER
    assert told(address="b:1") is News.MOVED
    assert told(in_sync_epoch=6) is News.IN_SYNC
    assert told(in_sync_epoch=4) is News.NONE
    assert told(id=0, address="") is News.NONE


async def test_a_lease_counts_from_when_a_heartbeat_was_sent() -> None:
    clock = ManualClock()
    lease = Lease(clock, 10.0)
    told: list[str] = []
    lease.on_lapse.append(lambda: told.append("lapsed"))
    lease.on_renewed.append(lambda: told.append("holds"))
    assert not lease.holds
    sent_s = clock.monotonic_s()
    await clock.advance(2)
    lease.renew(sent_s)
    assert lease.remaining_s == pytest.approx(7.5)  # a twentieth is left for clocks that run unevenly
    await clock.advance(7.4)
    assert told == ["holds"]
    lease.renew(sent_s + 2)  # late answers count for what they are
    await clock.advance(1.9)
    assert told == ["holds"]
    await clock.advance(0.3)
    assert (told, lease.holds, lease.remaining_s) == (["holds", "lapsed"], False, 0.0)
    lease.renew(clock.monotonic_s() - 9.9)  # an answer that took longer than the lease
    assert not lease.holds
    lease.renew(clock.monotonic_s())
    assert told == ["holds", "lapsed", "holds"]
    lease.close()


async def test_a_lease_is_not_longer_than_a_new_controller_waits() -> None:
    """It does not know how long a broker may be silent that only another controller has heard."""
    clock = ManualClock()
    lease = Lease(clock, 60.0)
    lease.renew(clock.monotonic_s())
    assert lease.remaining_s < HEARTBEAT_TIMEOUT_S
    lease.close()


# --- its id ---------------------------------------------------------------------------------------


async def test_an_id_whose_answer_was_lost_is_asked_for_again(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running_controller(directory=tmp_path / "controller") as controller:
        options = options_of(tmp_path / "a", controller.address)
        controllers = Controllers(options, clock)
        try:
            other = Identity(options_of(tmp_path / "b", controller.address), "10.0.0.2:1", clock)
            own = Identity(options, "10.0.0.1:1", clock)
            asked = await own._ask_next(controllers)  # and then the power fails
            assert (asked.id, (tmp_path / "a" / "brokerIdentity-temp").exists()) == (1, True)
            assert await Identity(options, "10.0.0.1:1", clock).obtain(controllers) == 1
            assert (tmp_path / "a" / "brokerIdentity").read_text() == "DefaultCluster#broker-a#1"
            assert not (tmp_path / "a" / "brokerIdentity-temp").exists()
            # An id that was another's in the end: the next one.
            (tmp_path / "b").mkdir()
            (tmp_path / "b" / "brokerIdentity-temp").write_text("DefaultCluster#broker-a#1#10.0.0.2:1;7")
            assert await other.obtain(controllers) == 2
        finally:
            await controllers.close()
        assert controller.groups["broker-a"].replicas.keys() == {1, 2}


async def test_an_id_of_another_broker_is_not_taken(tmp_path: Path) -> None:
    async with running_controller() as controller:
        options = options_of(tmp_path, controller.address)
        controllers = Controllers(options, ManualClock())
        try:
            for text, words in (
                ("DefaultCluster#broker-b#1", "belongs to broker 'broker-b'"),
                ("Other#broker-a#1", "of cluster 'Other'"),
                ("broker-a", "is damaged"),
            ):
                (tmp_path / "brokerIdentity").write_text(text)
                with pytest.raises(NotThisBroker, match=words):
                    await Identity(options, "10.0.0.1:1", ManualClock()).obtain(controllers)
        finally:
            await controllers.close()
        assert not controller.groups


# --- its start ------------------------------------------------------------------------------------


async def test_a_broker_starts_before_its_controller_and_says_what_it_waits_for(tmp_path: Path) -> None:
    async with running_controller(directory=tmp_path / "c") as first:
        address, port = first.address, first.port
    async with (
        running_nameserver() as nameserver,
        running_broker(nameserver=nameserver, controlled=True, controllers=address) as running,
    ):
        broker = running.broker
        await until(lambda: "none of the controllers" in broker.leadership.waits_for)
        assert address in broker.leadership.waits_for
        assert not nameserver.routes.groups  # name servers send nobody
        async with Dialer() as dialer:
            answer = await dialer.call(
                running.address, RequestCode.SEND_MESSAGE_V2, fields={"a": "p", "b": "t", "c": "t", "d": "4",
                "e": "0", "f": "0", "g": "0", "h": "0", "j": "0"},
            )  # fmt: skip
        assert answer.code == 14
        assert "none of the controllers" in str(answer.remark)
        async with running_controller(directory=tmp_path / "c", listen_port=port):
            await until(lambda: broker.leadership.leads)
            await until(lambda: nameserver.routes.groups)
            assert nameserver.routes.groups["broker-a"].addresses == {0: running.address}


async def test_a_stop_does_not_wait_for_a_controller(tmp_path: Path) -> None:
    relay = Relay()
    try:
        async with running_controller() as controller:
            address = await relay.proxy(controller.address)
            relay.stall()  # it takes connections, and never answers
            async with running_broker(controlled=True, controllers=address) as running:
                await asyncio.sleep(0.05)
                async with asyncio.timeout(2):
                    await running.stop()
    finally:
        await relay.close()


# --- what it is told ------------------------------------------------------------------------------


async def notice(to: RunningBroker, epoch: int, id: int, address: str, set_epoch: int = 9) -> int:
    header = BrokerRoleChanged(
        master_address=address, master_broker_id=id, master_epoch=epoch, sync_state_set_epoch=set_epoch
    )
    body = SyncStateSet(sync_state_set=frozenset({id}), sync_state_set_epoch=set_epoch).encode()
    async with Dialer() as dialer:
        answer = await dialer.call(to.address, RequestCode.NOTIFY_BROKER_ROLE_CHANGED, header, body)
    return answer.code


async def test_a_notice_for_the_process_before_is_not_heeded(tmp_path: Path) -> None:
    """It may name an in-sync set that has grown since: the controller is asked first."""
    async with running_controller() as first:
        address = first.address
    async with running_broker(controlled=True, controllers=address) as running:
        assert await notice(running, 5, 1, running.address) == 0
        controlled = running.broker.controlled
        assert controlled is not None
        await until(lambda: "none of the controllers" in running.broker.leadership.waits_for)
        assert controlled.elections.mastership.epoch == 0
        assert not running.broker.leadership.leads


async def test_a_notice_counts_as_far_as_the_controller_says_the_same(tmp_path: Path) -> None:
    """Anybody can send one. What is made up in it must not outlive it: epochs only grow."""
    async with running_controlled(2, directory=tmp_path) as two:
        leader = await two.leading()
        await two.in_sync(2)
        number = two.number_of(leader)
        known = leader.broker.controlled
        assert known is not None
        before = known.elections.mastership
        for to in (1, 2):
            for epoch, id, address in (
                (1_000_000, to, two.broker(to).address),
                (1_000_000, 7, "127.0.0.1:1"),
                (before.epoch, before.id, "127.0.0.1:1"),
                (before.epoch, before.id, before.address),
            ):
                assert await notice(two.broker(to), epoch, id, address, 1_000_000) == 0
        async with Producer(two.nameserver_address, group="p") as producer:
            await producer.send(Message("t", b"1"))
        heeded = known.elections.mastership
        assert (heeded.epoch, heeded.id, heeded.address) == (before.epoch, before.id, before.address)
        assert leader.broker.leadership.leads
        await two.in_sync(2)
        await two.kill(number)
        new = await two.leading(but=number)
        assert new.broker.controlled is not None
        assert before.epoch < new.broker.controlled.elections.mastership.epoch < 1_000_000
        async with Producer(two.nameserver_address, group="p") as producer:
            await producer.send(Message("t", b"2"))


async def test_epochs_that_fall_back_change_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with running_controlled(1) as group:
        broker = group.broker(1).broker
        assert broker.controlled is not None
        heeded = broker.controlled.elections.mastership
        assert (heeded.epoch, heeded.id) == (1, 1)
        assert await notice(group.broker(1), 0, 2, "127.0.0.1:1") == 0
        assert await notice(group.broker(1), 1, 2, "127.0.0.1:1") == 0
        async with Producer(group.nameserver_address, group="p") as producer:
            await producer.send(Message("t", b"1"))
        assert (broker.leadership.leads, broker.controlled.elections.mastership) == (True, heeded)
        assert "epoch_fell_back told=0 known=1" in caplog.text
        assert "two_masters_in_one_epoch epoch=1 known=1 told=2" in caplog.text


async def test_a_controller_that_knows_less_than_the_log_is_not_heeded(tmp_path: Path) -> None:
    """Its state was lost: the broker takes no role from it, and says why."""
    async with running_controlled(1, directory=tmp_path) as group:
        for _ in range(2):
            async with Producer(group.nameserver_address, group="p") as producer:
                await producer.send(Message("t", b"1"))
            await group.stop(1)
            await group.start_again(1)
            await group.leading()
        broker = group.broker(1).broker
        assert broker.replication.epochs is not None
        assert broker.replication.epochs.history.last >= 3
    (tmp_path / "controller" / "controller.state").unlink()
    (tmp_path / "broker-1" / "store" / "brokerIdentity").unlink()  # as operators do
    async with (
        running_controller(directory=tmp_path / "other") as controller,
        running_broker(
            directory=tmp_path / "broker-1", controlled=True, controllers=controller.address
        ) as running,
    ):
        await until(lambda: "cannot take its role" in running.broker.leadership.waits_for)
        assert "state was lost, or is an older copy" in running.broker.leadership.waits_for
        assert not running.broker.leadership.leads


async def test_epochs_are_shown_to_tools() -> None:
    async with running_controlled(1) as group:
        async with Producer(group.nameserver_address, group="p") as producer:
            await producer.send(Message("t", b"1"))
        await group.stop(1)
        await group.start_again(1)
        running = await group.leading()
        async with Dialer() as dialer:
            answer = await dialer.call(running.address, RequestCode.GET_BROKER_EPOCH_CACHE)
        told = EpochRanges.decode(answer.body)
        end = running.broker.store.log.max_offset
        assert (told.broker_id, told.broker_name, told.max_offset) == (0, "broker-a", end)
        first, second = told.epoch_list
        assert first == EpochRange(epoch=1, start_offset=0, end_offset=second.start_offset)
        assert (second.epoch, second.start_offset, second.end_offset) == (3, end, 2**63 - 1)


async def test_the_role_is_the_controllers(tmp_path: Path) -> None:
    async with running_controlled(1) as group, Dialer() as dialer:
        answer = await dialer.call(
            group.broker(1).address, RequestCode.UPDATE_BROKER_CONFIG, body=b"brokerRole=SLAVE\nbrokerId=3\n"
        )
        assert answer.code == 1
        assert "kerolox controller elect" in str(answer.remark)
        assert group.broker(1).broker.leadership.leads


# --- the lease ------------------------------------------------------------------------------------


async def test_a_leader_without_a_controller_takes_nothing_and_goes_on_when_it_is_back() -> None:
    async with running_controlled(1, controller_silence_ms=1000, alive_ms=100, alive_timeout_ms=100) as group:
        broker = group.broker(1).broker
        async with Producer(
            group.nameserver_address, group="p", options=ProducerOptions(retries=0)
        ) as producer:
            await producer.send(Message("t", b"1"))
            group.control_link(1).cut(silently=True)
            await until(lambda: Obstacle.NO_LEASE in broker.store.state.obstacles)
            with pytest.raises(SendFailed, match="no controller has answered this leader"):
                await producer.send(Message("t", b"2"))
            group.control_link(1).heal()
            await until(lambda: not broker.store.state.obstacles)
            await until(lambda: broker.leadership.leads)
            await producer.send(Message("t", b"3"))


async def test_the_lease_can_be_switched_off() -> None:
    async with running_controlled(
        1, controller_silence_ms=1000, alive_ms=100, alive_timeout_ms=100, controllerLeaseEnable="false"
    ) as group:
        broker = group.broker(1).broker
        assert broker.controlled is not None
        await group.stop_controller()
        lease = broker.controlled.lease
        await until(lambda: not lease.holds)
        async with Producer(
            group.nameserver_address, group="p", options=ProducerOptions(retries=0)
        ) as producer:
            await producer.send(Message("t", b"1"))


async def test_a_controller_that_returns_finds_its_leader(tmp_path: Path) -> None:
    async with running_controlled(1, alive_ms=100) as group:
        broker = group.broker(1).broker
        assert broker.controlled is not None
        before = broker.controlled.elections.mastership
        await group.stop_controller()
        await until(lambda: broker.controlled is not None and not broker.controlled.controllers.leader)
        await group.start_controller()
        await until(lambda: group.controller.live.view(["broker-a"]).of("broker-a"))
        assert group.controller.groups["broker-a"].master == 1
        assert broker.controlled.elections.mastership == before  # it went on all the time
        assert broker.store.state.writable
