"""Three controllers on three members of etcd, all real processes: the leading controller is killed, then a
member of etcd, and brokers are answered. Epochs never fall."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from kerolox.errors import KeroloxError
from kerolox.protocol.bodies.controller import SyncStateSet
from kerolox.protocol.codes import RequestCode as Code
from kerolox.protocol.codes import ResponseCode
from kerolox.protocol.command import Command
from kerolox.protocol.headers import controller as headers
from kerolox.protocol.headers.registration import BrokerHeartbeatRequest

from .conftest import A, C, FakeBroker
from .controller_processes import ControllerProcesses
from .etcd_kit import EtcdMembers, etcd_or_skip

pytestmark = pytest.mark.xdist_group("etcd")

WHO = headers.ReplicaInfoRequest(broker_name=A)


@dataclass
class At:
    """The controller that a broker asks."""

    address: str


class Broker(FakeBroker):
    """A broker that knows several controllers: it beats to all, and asks the one that leads."""

    def __init__(self, addresses: list[str]) -> None:
        super().__init__(At(addresses[0]))
        self.addresses = addresses
        self._beating: asyncio.Task[None] | None = None

    async def look(self, address: str) -> headers.ControllerMetadataAnswer:
        answer = await self._dialer.call(address, Code.CONTROLLER_GET_METADATA_INFO, timeout_s=2)
        return answer.header(headers.ControllerMetadataAnswer)

    async def find(self) -> str:
        """Ask until one says that it leads."""
        while True:
            for address in self.addresses:
                try:
                    if (await self.look(address)).is_leader:
                        self.controller = At(address)
                        return address
                except KeroloxError:
                    continue
            await asyncio.sleep(0.05)

    def begin(self) -> None:
        self._beating = asyncio.create_task(self._beat())

    async def end(self) -> None:
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.wait([self._beating])

    async def beat(self, address: str) -> int:
        header = BrokerHeartbeatRequest(
            cluster_name=C, broker_addr=self.address, broker_name=A, broker_id=self.id, epoch=1, max_offset=1
        )
        return (await self._dialer.call(address, Code.BROKER_HEARTBEAT, header, timeout_s=1)).code

    async def _beat(self) -> None:
        while True:
            for address in self.addresses:
                try:
                    await self.beat(address)
                except KeroloxError:
                    continue
            await asyncio.sleep(0.2)

    async def done(self, ask: Callable[[], Awaitable[Command]]) -> Command:
        """Ask again until it is answered with success, as brokers do."""
        async with asyncio.timeout(15):
            while True:
                await self.find()
                try:
                    answer = await ask()
                except KeroloxError:
                    continue
                if answer.code in (ResponseCode.SUCCESS, ResponseCode.CONTROLLER_MASTER_STILL_EXIST):
                    return answer
                await asyncio.sleep(0.05)


async def test_a_controller_and_a_member_of_etcd_are_killed(tmp_path: Path) -> None:
    with (
        etcd_or_skip(tmp_path / "etcd") as etcd,
        ControllerProcesses(tmp_path, etcd.endpoints, etcdLeaseSeconds=2) as controllers,
    ):
        addresses = list(controllers.addresses.values())
        async with Broker(addresses) as one, Broker(addresses) as two:
            first = await one.find()
            await two.find()
            told = [await one.look(address) for address in addresses]
            peers = "".join(f"{id}:{address};" for id, address in controllers.addresses.items())
            assert {each.peers for each in told} == {peers}
            assert [each.is_leader for each in told].count(True) == 1
            await one.join()
            assert (await one.elect()).code == 0
            await two.join()
            assert (await one.alter(1, 2, epoch=1, set_epoch=1)).code == 0
            one.begin()
            two.begin()
            for address in addresses:
                follows = address != first
                assert await one.beat(address) == (ResponseCode.CONTROLLER_NOT_LEADER if follows else 0)
                if follows:
                    assert (await one.look(address)).controller_leader_address == first
                    one.controller = At(address)
                    assert (await one.elect()).code == ResponseCode.CONTROLLER_NOT_LEADER

            (leading,) = (id for id, address in controllers.addresses.items() if address == first)
            controllers.kill(leading)
            second = await asyncio.wait_for(one.find(), 10)
            assert second != first
            assert await one.master() == (1, one.address, 1)  # whoever lives keeps its master
            assert await hand_over(two) == 2

            etcd.kill("e0")
            epochs = [await hand_over(to) for to in (one, two, one, two)]
            assert epochs == [3, 4, 5, 6]
            # And now the master goes.
            await two.end()
            for address in addresses:
                two._dialer.hang_up(address, "killed")
            async with asyncio.timeout(10):
                while (master := await one.master())[0] != 1:  # noqa: ASYNC110 - a server changes it
                    await asyncio.sleep(0.05)
            assert master == (1, one.address, 7)
            await one.end()


async def test_a_controller_that_was_stalled_answers_nobody_as_leader(
    etcd_members: EtcdMembers, tmp_path: Path
) -> None:
    """What waited for it is answered when it goes on: by then another one leads, and nobody has told it."""
    settings = {"etcdLeaseSeconds": 2, "controllerDLegerGroup": "stalled"}
    with ControllerProcesses(tmp_path, etcd_members.endpoints, 2, **settings) as controllers:
        addresses = list(controllers.addresses.values())
        async with Broker(addresses) as one, Broker(addresses) as waits:
            first = await one.find()
            (leading,) = (id for id, address in controllers.addresses.items() if address == first)
            await one.join()
            assert (await one.elect()).code == 0
            waits.id, waits.controller = 1, At(first)
            assert await waits.beat(first) == 0
            controllers.pause(leading)
            asked = [
                asyncio.create_task(waits.heartbeat()),
                asyncio.create_task(waits.elect()),
                asyncio.create_task(waits.ask(Code.CONTROLLER_GET_REPLICA_INFO, WHO)),
            ]
            one.addresses = [address for address in addresses if address != first]
            async with asyncio.timeout(10):
                assert await one.find() != first
            controllers.resume(leading)
            codes = [answer.code for answer in await asyncio.gather(*asked)]
            assert codes == [ResponseCode.CONTROLLER_NOT_LEADER] * 3


async def hand_over(to: Broker) -> int:
    """An administrator wants this master, and the other one follows it. The epoch that it has."""
    answer = await to.done(lambda: to.elect(to.id, wanted=True))
    epoch = answer.header(headers.ElectMasterAnswer).master_epoch
    assert epoch is not None
    await to.done(lambda: follow(to, epoch))
    return epoch


async def follow(master: Broker, epoch: int) -> Command:
    now = await master.ask(Code.CONTROLLER_GET_REPLICA_INFO, WHO)
    in_sync = SyncStateSet.decode(now.body)
    if in_sync.sync_state_set == {1, 2}:
        return now  # the answer to the change got lost
    return await master.alter(1, 2, epoch=epoch, set_epoch=in_sync.sync_state_set_epoch)
