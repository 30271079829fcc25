from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kerolox.controller.controller import Controller
from kerolox.front.lanes import Lane
from kerolox.front.requests import Answer, Request
from kerolox.net.dialer import Dialer
from kerolox.net.handlers import RemotingHandlers
from kerolox.net.server import Server
from kerolox.protocol.bodies.controller import SyncStateSet
from kerolox.protocol.codes import RequestCode as Code
from kerolox.protocol.command import Command
from kerolox.protocol.frame import BINARY, JSON
from kerolox.protocol.headers import controller as headers
from kerolox.protocol.headers.registration import BrokerHeartbeatRequest
from kerolox.testing.clock import ManualClock
from kerolox.testing.controller import running_controller

from .etcd_kit import EtcdMembers, etcd_or_skip

A, C = "broker-a", "DefaultCluster"


class FakeBroker:
    """A broker as a controller sees it: it asks over a connection of its own, and hears notices on a port."""

    def __init__(self, controller: Controller, encoding: int = JSON, name: str = A) -> None:
        self.controller = controller
        self.name = name
        self.id = 0
        self.told: list[tuple[headers.BrokerRoleChanged, SyncStateSet]] = []
        self._dialer = Dialer(encoding=encoding)
        handlers = RemotingHandlers()
        handlers.add(
            Code.NOTIFY_BROKER_ROLE_CHANGED, self._notice, headers.BrokerRoleChanged, Lane("notices")
        )
        self._server = Server(handlers, host="127.0.0.1")

    async def __aenter__(self) -> FakeBroker:
        await self._server.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._dialer.close()
        await self._server.close()

    @property
    def address(self) -> str:
        return self._server.address

    def _notice(self, request: Request[headers.BrokerRoleChanged]) -> Answer:
        self.told.append((request.header, SyncStateSet.decode(request.body)))
        return Answer()

    async def ask(self, code: int, header: Any = None, body: bytes = b"") -> Command:
        return await self._dialer.call(self.controller.address, code, header, body, timeout_s=10)

    async def take_id(self) -> int:
        asked = headers.NextBrokerIdRequest(cluster_name=C, broker_name=self.name)
        answer = await self.ask(Code.CONTROLLER_GET_NEXT_BROKER_ID, asked)
        self.id = answer.header(headers.NextBrokerIdAnswer).next_broker_id or 0
        taken = headers.ApplyBrokerIdRequest(
            cluster_name=C,
            broker_name=self.name,
            applied_broker_id=self.id,
            register_check_code=f"{self.address};1",
        )
        answer = await self.ask(Code.CONTROLLER_APPLY_BROKER_ID, taken)
        assert answer.code == 0, answer.remark
        return self.id

    async def register(self, *, address: str = "", **more: Any) -> Command:
        header = headers.RegisterToControllerRequest(
            cluster_name=C,
            broker_name=self.name,
            broker_id=self.id,
            broker_address=address or self.address,
            **more,
        )
        return await self.ask(Code.CONTROLLER_REGISTER_BROKER, header)

    async def heartbeat(self, **more: Any) -> Command:
        header = BrokerHeartbeatRequest(
            cluster_name=C, broker_addr=self.address, broker_name=self.name, broker_id=self.id, **more
        )
        return await self.ask(Code.BROKER_HEARTBEAT, header)

    async def elect(self, id: int | None = None, *, wanted: bool = False) -> Command:
        header = headers.ElectMasterRequest(
            cluster_name=C, broker_name=self.name, broker_id=id or self.id, designate_elect=wanted
        )
        return await self.ask(Code.CONTROLLER_ELECT_MASTER, header)

    async def alter(self, *ids: int, epoch: int, set_epoch: int) -> Command:
        header = headers.AlterSyncStateSetRequest(
            broker_name=self.name, master_broker_id=self.id, master_epoch=epoch
        )
        body = SyncStateSet(sync_state_set=frozenset(ids), sync_state_set_epoch=set_epoch).encode()
        return await self.ask(Code.CONTROLLER_ALTER_SYNC_STATE_SET, header, body)

    async def master(self) -> tuple[int | None, str | None, int | None]:
        answer = await self.ask(
            Code.CONTROLLER_GET_REPLICA_INFO, headers.ReplicaInfoRequest(broker_name=self.name)
        )
        header = answer.header(headers.ReplicaInfoAnswer)
        return header.master_broker_id, header.master_address, header.master_epoch

    async def join(self, **more: Any) -> FakeBroker:
        """As a broker does when it starts."""
        await self.take_id()
        assert (await self.register(**more)).code == 0
        await self.heartbeat(epoch=0, max_offset=0, **more)
        return self

    async def hang_up(self) -> None:
        """As a killed process does."""
        self._dialer.hang_up(self.controller.address, "killed")
        await asyncio.sleep(0)


async def until(condition: Callable[[], object], timeout_s: float = 10.0) -> None:
    for _ in range(int(timeout_s / 0.01)):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come to pass in time")


@pytest.fixture(scope="session")
def etcd_members(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdMembers]:
    """Three members that nobody disturbs; each test takes keys of its own."""
    with etcd_or_skip(tmp_path_factory.mktemp("etcd")) as members:
        yield members


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def controller(clock: ManualClock, tmp_path: Path) -> AsyncIterator[Controller]:
    async with running_controller(clock=clock, directory=tmp_path) as running:
        await until(lambda: running.is_leader)
        yield running


@pytest.fixture(params=[JSON, BINARY], ids=["json", "binary"])
async def one(request: pytest.FixtureRequest, controller: Controller) -> AsyncIterator[FakeBroker]:
    async with FakeBroker(controller, request.param) as broker:
        yield broker


@pytest.fixture
async def two(controller: Controller) -> AsyncIterator[FakeBroker]:
    async with FakeBroker(controller) as broker:
        yield broker
