"""Brokers that have no messages: they speak to controllers as real ones do, and note what they are told."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

from kerolox.errors import KeroloxError
from kerolox.front.lanes import Lane
from kerolox.front.requests import Answer, Request
from kerolox.net.dialer import Dialer
from kerolox.net.handlers import RemotingHandlers
from kerolox.net.server import Server
from kerolox.net.tls import ServerTls, TlsMode
from kerolox.protocol.bodies.controller import ElectedMaster, SyncStateSet
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import Command
from kerolox.protocol.headers import controller as headers
from kerolox.protocol.headers.registration import BrokerHeartbeatRequest

from .world import Host

CLUSTER, GROUP = "C", "broker-a"
PORT = 10911
TIMEOUT_MS = 3000


@dataclass
class Heard:
    """What brokers were told, all of them together."""

    masters: list[tuple[int, int]] = field(default_factory=list)  # epoch and id
    altered: list[tuple[int, int, frozenset[int], int]] = field(
        default_factory=list
    )  # epoch, id, set, its epoch


class StandIn:
    """One of them; ``known_id`` is what it has on its disk."""

    def __init__(self, host: Host, controllers: list[str], heard: Heard, chance: random.Random) -> None:
        self.host = host
        self.known_id: int | None = None
        self.check_code = f"{host.ip}:{PORT};{host.name}"
        self._controllers = controllers
        self._heard = heard
        self._chance = chance

    def start(self) -> None:
        process = self.host.begin()
        self.epoch, self.master, self.in_sync, self.set_epoch = 0, 0, frozenset[int](), 0
        self.host.world.loop.start(process, self._run())

    def power_off(self, seed: int) -> None:
        self.host.power_off()

    async def _run(self) -> None:
        handlers = RemotingHandlers()
        handlers.add(
            RequestCode.NOTIFY_BROKER_ROLE_CHANGED, self._told, headers.BrokerRoleChanged, Lane("notices")
        )
        plain = ServerTls(mode=TlsMode.DISABLED)
        clock = self.host.clock
        server = Server(handlers, host=self.host.ip, port=PORT, clock=clock, tls=plain)
        await server.start()
        self._dialer = Dialer(clock=clock)
        asyncio.get_running_loop().create_task(self._beat())
        while True:
            try:
                await self._live()
            except KeroloxError:
                pass
            await clock.sleep(self._chance.uniform(0.2, 2.0))

    async def _live(self) -> None:
        leader = await self._leader()
        if leader is None:
            return
        if self.known_id is None:
            await self._take_id(leader)
        if not self.epoch:
            await self._register(leader)
        if not self.epoch or not self.master:
            await self._elect(leader)
        if self._chance.random() < 0.5:  # else it asks for what it wants as one that does not know better
            asked = headers.ReplicaInfoRequest(broker_name=GROUP)
            answer = await self._dialer.call(leader, RequestCode.CONTROLLER_GET_REPLICA_INFO, asked)
            if answer.code == ResponseCode.SUCCESS:
                self._hear(answer, headers.ReplicaInfoAnswer)
        if self.master == self.known_id:
            await self._alter(leader)

    async def _leader(self) -> str | None:
        for address in self._controllers:
            try:
                answer = await self._dialer.call(
                    address, RequestCode.CONTROLLER_GET_METADATA_INFO, timeout_s=1.0
                )
            except KeroloxError:
                continue
            found = answer.header(headers.ControllerMetadataAnswer).controller_leader_address
            if found:
                return found
        return None

    async def _take_id(self, leader: str) -> None:
        answer = await self._dialer.call(
            leader,
            RequestCode.CONTROLLER_GET_NEXT_BROKER_ID,
            headers.NextBrokerIdRequest(cluster_name=CLUSTER, broker_name=GROUP),
        )
        id = answer.header(headers.NextBrokerIdAnswer).next_broker_id
        if answer.code != ResponseCode.SUCCESS or id is None:
            return
        applied = headers.ApplyBrokerIdRequest(
            cluster_name=CLUSTER,
            broker_name=GROUP,
            applied_broker_id=id,
            register_check_code=self.check_code,
        )
        answer = await self._dialer.call(leader, RequestCode.CONTROLLER_APPLY_BROKER_ID, applied)
        if answer.code == ResponseCode.SUCCESS:
            self.known_id = id

    async def _register(self, leader: str) -> None:
        asked = headers.RegisterToControllerRequest(
            cluster_name=CLUSTER,
            broker_name=GROUP,
            broker_id=self.known_id,
            broker_address=f"{self.host.ip}:{PORT}",
        )
        answer = await self._dialer.call(leader, RequestCode.CONTROLLER_REGISTER_BROKER, asked)
        if answer.code == ResponseCode.SUCCESS:
            self._hear(answer, headers.RegisterToControllerAnswer)

    async def _elect(self, leader: str) -> None:
        if self.known_id is None:
            return
        asked = headers.ElectMasterRequest(cluster_name=CLUSTER, broker_name=GROUP, broker_id=self.known_id)
        answer = await self._dialer.call(leader, RequestCode.CONTROLLER_ELECT_MASTER, asked)
        if answer.code in (ResponseCode.SUCCESS, ResponseCode.CONTROLLER_MASTER_STILL_EXIST):
            told = answer.header(headers.ElectMasterAnswer)
            in_sync = ElectedMaster.decode(answer.body).sync_state_set
            self._take(told.master_epoch, told.master_broker_id, in_sync, told.sync_state_set_epoch)

    async def _alter(self, leader: str) -> None:
        assert self.known_id is not None
        ids = [1, 2, 3, 4][: self._chance.randint(1, 4)]
        wanted = frozenset(self._chance.sample(ids, self._chance.randint(1, len(ids)))) | {self.known_id}
        asked = headers.AlterSyncStateSetRequest(
            broker_name=GROUP, master_broker_id=self.known_id, master_epoch=self.epoch
        )
        epoch = self.epoch
        body = SyncStateSet(sync_state_set=wanted, sync_state_set_epoch=self.set_epoch).encode()
        answer = await self._dialer.call(leader, RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, asked, body)
        if answer.code == ResponseCode.SUCCESS:
            got = SyncStateSet.decode(answer.body)
            self._heard.altered.append((epoch, self.known_id, got.sync_state_set, got.sync_state_set_epoch))
            self._take(epoch, self.known_id, got.sync_state_set, got.sync_state_set_epoch)

    def _told(self, request: Request[headers.BrokerRoleChanged]) -> Answer:
        told = request.header
        body = SyncStateSet.decode(request.body)
        self._take(told.master_epoch, told.master_broker_id, body.sync_state_set, told.sync_state_set_epoch)
        return Answer()

    def _hear(
        self, answer: Command, kind: type[headers.ReplicaInfoAnswer | headers.RegisterToControllerAnswer]
    ) -> None:
        told = answer.header(kind)
        body = SyncStateSet.decode(answer.body)
        self._take(told.master_epoch, told.master_broker_id, body.sync_state_set, body.sync_state_set_epoch)

    def _take(
        self, epoch: int | None, master: int | None, in_sync: frozenset[int], set_epoch: int | None
    ) -> None:
        if not epoch or epoch < self.epoch:
            return
        if master:
            self._heard.masters.append((epoch, master))
        if epoch > self.epoch or (set_epoch or 0) > self.set_epoch:
            self.epoch, self.master, self.in_sync, self.set_epoch = (
                epoch,
                master or 0,
                in_sync,
                set_epoch or 0,
            )

    async def _beat(self) -> None:
        while True:
            if self.known_id is not None:
                told = BrokerHeartbeatRequest(
                    cluster_name=CLUSTER,
                    broker_addr=f"{self.host.ip}:{PORT}",
                    broker_name=GROUP,
                    broker_id=self.known_id,
                    epoch=self.epoch,
                    max_offset=self._chance.randrange(1000),
                    confirm_offset=0,
                    heartbeat_timeout_mills=TIMEOUT_MS,
                    election_priority=None,
                )
                for address in self._controllers:
                    try:
                        await self._dialer.tell(address, RequestCode.BROKER_HEARTBEAT, told, timeout_s=0.5)
                    except KeroloxError:
                        pass
            await self.host.clock.sleep(0.7)
