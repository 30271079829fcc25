"""A DLedger group of brokers, some of Apache's and some of ours, as processes that can be killed."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

from kerolox.nameserver.listings import cluster_info
from kerolox.nameserver.server import NameServer
from kerolox.protocol.bodies.dledger import (
    LedgerAnswer,
    LedgerCode,
    MemberRequest,
    MetadataAnswer,
    TransferRequest,
)
from kerolox.protocol.codes import RequestCode
from tests.rig.ports import free_ports

from .conftest import Factory
from .ours import OurBroker
from .processes import JavaBroker
from .wire import Answer, request

CLUSTER = "RaftCluster"
BUSY_S = 60.0  # for what takes ten seconds on an idle machine


async def until(ready: Callable[[], object], what: Callable[[], object] = str, for_s: float = BUSY_S) -> None:
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + for_s
    while not ready():
        assert loop.time() < deadline_s, f"it did not come: {what()}"
        await asyncio.sleep(0.05)


class LedgerGroupProcesses:
    """Members n0, n1, ... of kinds ``apache`` and ``ours``, at one name server."""

    def __init__(
        self,
        java: Factory,
        nameserver: NameServer,
        folder: Path,
        name: str,
        kinds: Sequence[str],
        **properties: object,
    ) -> None:
        self.name = name
        self.nameserver = nameserver
        ports = free_ports(len(kinds))
        self.peers = {f"n{number}": f"127.0.0.1:{port}" for number, port in enumerate(ports)}
        self.brokers: dict[str, JavaBroker | OurBroker] = {}
        for (member, _), kind in zip(self.peers.items(), kinds, strict=True):
            given = {
                "enableDLegerCommitLog": True,
                "dLegerGroup": name,
                "dLegerPeers": ";".join(f"{id}-{address}" for id, address in self.peers.items()),
                "dLegerSelfId": member,
                **properties,
            }
            if kind == "apache":
                self.brokers[member] = java.broker(
                    nameserver.address,
                    start=False,
                    name=name,
                    cluster=CLUSTER,
                    wait_registered=False,
                    properties=given,
                )
            else:
                self.brokers[member] = OurBroker(
                    folder / member, nameserver.address, name=name, cluster=CLUSTER, properties=given
                )

    async def start(self, *members: str) -> None:
        """All, or these, at the same time: one alone gets no role."""
        names = members or tuple(self.brokers)
        await asyncio.gather(*(asyncio.to_thread(self.brokers[name].start) for name in names))

    def finish(self) -> None:
        for broker in self.brokers.values():
            if isinstance(broker, OurBroker):
                broker.finish()

    # --- who leads ------------------------------------------------------------------------------------

    async def member_ask(self, member: str, code: LedgerCode, body: bytes, timeout: float = 10.0) -> Answer:
        return await asyncio.to_thread(request, self.peers[member], code, None, body, timeout)

    async def leader_by(self, member: str) -> str | None:
        """Whom this member follows."""
        body = MemberRequest(group=self.name, remote_id=member).encode()
        try:
            answer = await self.member_ask(member, LedgerCode.METADATA, body, 3.0)
        except (OSError, struct.error, json.JSONDecodeError):
            return None
        leader = MetadataAnswer.decode(answer.body).leader_id
        return leader if isinstance(leader, str) else None

    def registered_leader(self) -> str | None:
        """Who takes messages, as clients are told."""
        told = cluster_info(self.nameserver.routes).broker_addr_table.get(self.name)
        address = None if told is None else told.broker_addrs.get(0)
        return next((name for name, one in self.brokers.items() if one.address == address), None)

    async def leader(self) -> str:
        """The member that leads and whose broker takes messages."""
        found: list[str] = []
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + BUSY_S
        while True:
            registered = self.registered_leader()
            if registered is not None and self.brokers[registered].running:
                led_by = await self.leader_by(registered)
                if led_by == registered and (await self.try_send(registered, b"probe", "PROBE")) == 0:
                    return registered
                found = [registered, str(led_by)]
            assert loop.time() < deadline_s, f"nobody leads: {found}"
            await asyncio.sleep(0.1)

    async def hand_over(self, to: str) -> None:
        """Let this one lead, by the request that Apache's tool sends."""
        deadline_s = asyncio.get_running_loop().time() + BUSY_S
        while (leader := await self.leader()) != to:
            term = await self.term_of(leader)
            asked = TransferRequest(
                group=self.name, remote_id=leader, transfer_id=leader, transferee_id=to, term=term
            )
            answer = await self.member_ask(leader, LedgerCode.LEADERSHIP_TRANSFER, asked.encode())
            told = LedgerAnswer.decode(answer.body) if answer.body else answer
            assert asyncio.get_running_loop().time() < deadline_s, f"{leader} does not hand over: {told}"

    async def term_of(self, member: str) -> int:
        """From its file."""
        (path,) = self.brokers[member].store.glob("dledger-*/currterm")
        lines = dict(line.split("=") for line in path.read_text().splitlines() if "=" in line)
        return int(lines["currTerm"])

    # --- messages -------------------------------------------------------------------------------------

    async def try_send(self, member: str, body: bytes, topic: str, queue_id: int = 0) -> int:
        """The code of the answer; -1 for none."""
        fields = {
            "producerGroup": "producers", "topic": topic, "defaultTopic": "TBW102",
            "defaultTopicQueueNums": "4", "queueId": str(queue_id), "sysFlag": "0",
            "bornTimestamp": "1700000000000", "flag": "0", "properties": "", "reconsumeTimes": "0",
            "unitMode": "false", "batch": "false",
        }  # fmt: skip
        address = self.brokers[member].address
        try:
            answer = await asyncio.to_thread(request, address, RequestCode.SEND_MESSAGE, fields, body, 10.0)
        except (OSError, struct.error, json.JSONDecodeError):
            return -1
        return answer.code

    async def send(self, topic: str, count: int, prefix: str) -> None:
        """Each until it is acknowledged, by whoever leads."""
        member = await self.leader()
        for number in range(count):
            while await self.try_send(member, f"{prefix} {number}".encode(), topic) != 0:
                await asyncio.sleep(0.2)
                member = await self.leader()

    async def max_offset(self, member: str, topic: str) -> int:
        fields = {"topic": topic, "queueId": "0"}
        address = self.brokers[member].address
        answer = await asyncio.to_thread(request, address, RequestCode.GET_MAX_OFFSET, fields)
        return int(answer.ext_fields["offset"]) if answer.code == 0 else -1

    async def have(self, topic: str, count: int) -> None:
        """Wait until every member that runs gives out so many messages of the topic's first queue."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + BUSY_S
        while True:
            running = [name for name, one in self.brokers.items() if one.running]
            found = {name: await self.max_offset(name, topic) for name in running}
            if all(offset == count for offset in found.values()):
                return
            assert loop.time() < deadline_s, f"not all have {count}: {found}"
            await asyncio.sleep(0.2)
