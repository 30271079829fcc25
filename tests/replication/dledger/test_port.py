"""Three members on real ports, with real files for their terms: by the wire alone."""

from __future__ import annotations

import asyncio
import json
import random
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from kerolox.clock import SYSTEM_CLOCK
from kerolox.protocol.bodies.dledger import LedgerCode, LedgerStatus, MetadataAnswer, PushAnswer
from kerolox.replication.dledger.group import LedgerGroup
from kerolox.replication.dledger.port import MemberNetwork, MemberPort
from kerolox.replication.dledger.settings import GroupSettings, GroupUnusable, parse_peers
from kerolox.replication.dledger.term_file import Promise, TermFile
from kerolox.store.disk.files import Files
from tests.rig.ports import free_port

from .memory_ledger import MemoryLedger


class PortMember:
    """A member with a port, and its ledger in memory."""

    def __init__(self, settings: GroupSettings, folder: Path) -> None:
        self.settings = settings
        self.file = TermFile(folder / settings.self_id, Files())
        self.ledger = MemoryLedger(SYSTEM_CLOCK)

    async def start(self) -> None:
        self.port = MemberPort(self.settings, host="127.0.0.1")
        self.network = MemberNetwork(self.settings)
        await self.port.bind()
        self.ledger.restart()

        async def save(promise: Promise) -> None:
            await asyncio.to_thread(self.file.save, promise)

        self.group = LedgerGroup(
            self.settings, self.ledger, self.network, self.file.load(), save, chance=random.Random()
        )
        await self.port.start(self.group)
        self.group.start()

    async def close(self) -> None:
        await self.group.close()
        await self.port.close()
        await self.network.close()


async def until(ready: Callable[[], bool], timeout_s: float = 30.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not ready():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.fixture
def members(tmp_path: Path) -> list[PortMember]:
    peers = {f"n{number}": f"127.0.0.1:{free_port()}" for number in range(3)}
    return [
        PortMember(
            GroupSettings("g", name, peers, heartbeat_ms=1000, vote_ms_min=50, vote_ms_max=150), tmp_path
        )
        for name in peers
    ]


async def ask(address: str, code: int, body: bytes, kind: int = 0) -> tuple[dict[str, object], bytes]:
    """One frame there and one back, as bytes."""
    host, _, port = address.rpartition(":")
    header = json.dumps({"code": code, "flag": 0, "opaque": 77, "language": "JAVA", "version": 479}).encode()
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(struct.pack(">II", 4 + len(header) + len(body), kind << 24 | len(header)) + header + body)
    (length,) = struct.unpack(">I", await reader.readexactly(4))
    frame = await reader.readexactly(length)
    writer.close()
    assert frame[0] == 0, "headers are JSON"
    size = int.from_bytes(frame[1:4], "big")
    return json.loads(frame[4 : 4 + size]), frame[4 + size :]


async def test_three_members_elect_replicate_and_go_on_without_one(members: list[PortMember]) -> None:
    for member in members:
        await member.start()
    try:

        def leaders() -> list[PortMember]:
            return [member for member in members if member.group.member.is_leader]

        await until(lambda: len(leaders()) == 1)
        (leader,) = leaders()
        acked: list[bool] = []
        for number in range(500):
            leader.ledger.append_leader(b"entry %d" % number * 10, acked.append)
        await until(lambda: len(acked) == 500)
        assert all(acked)
        await until(lambda: all(member.ledger.committed_index == 499 for member in members))
        assert members[0].ledger.entries == members[1].ledger.entries == members[2].ledger.entries
        assert leader.file.load() == leader.group.member.promise

        address = leader.settings.peers[leader.settings.self_id]
        name = leader.settings.self_id.encode()
        header, body = await ask(address, LedgerCode.METADATA, b'{"group":"g","remoteId":"%b"}' % name)
        assert (header["code"], header["flag"], header["opaque"]) == (200, 1, 77)
        assert not header.get("extFields")
        assert MetadataAnswer.decode(body).leader_id == leader.settings.self_id
        header, body = await ask(address, LedgerCode.PUSH, b'{"group":"other","remoteId":"%b"}' % name)
        assert header["code"] == 200
        assert PushAnswer.decode(body).code == LedgerStatus.UNKNOWN_GROUP
        for code, wrong in (
            (LedgerCode.PULL, b'{"group":"g","remoteId":"%b"}' % name),
            (LedgerCode.VOTE, b"nonsense"),
            (LedgerCode.PUSH, b"nonsense"),
            (LedgerCode.HEART_BEAT, b"nonsense"),
        ):
            header, body = await ask(address, code, wrong)
            assert (header["code"], body) == (1, b"")
            assert header["remark"]
        header, _ = await ask(address, 51006, b"{}")
        assert header["code"] == 3  # a code nobody knows

        await leader.close()
        rest = [member for member in members if member is not leader]
        await until(lambda: any(member.group.member.is_leader for member in rest))
        (second,) = [member for member in rest if member.group.member.is_leader]
        second.ledger.append_leader(b"after", acked.append)
        await until(lambda: len(acked) == 501)
        assert acked[-1]
        await leader.start()
        await until(lambda: leader.ledger.entries == second.ledger.entries)
    finally:
        for member in members:
            await member.close()


def test_settings_of_groups() -> None:
    text = "n0-127.0.0.1:40911;n1-host-with-dash:40912; n2-127.0.0.1:40913 ;"
    peers = parse_peers(text)
    assert peers == {"n0": "127.0.0.1:40911", "n1": "host-with-dash:40912", "n2": "127.0.0.1:40913"}
    assert (GroupSettings("g", "n1", peers).quorum, GroupSettings("g", "n1", peers).follower_id) == (2, 2)
    assert GroupSettings("g", "n1", peers).others == ("n0", "n2")
    for wrong in ("", "n0", "n0-host", "n0-host:x", "n0-h:0;n1-h:2", "n0-h:1;n0-h:2", "n0-h:65536", "-h:1"):
        with pytest.raises(GroupUnusable, match="dLegerPeers"):
            parse_peers(wrong)
    assert parse_peers("n0-localhost:0") == {"n0": "localhost:0"}  # a group of one may pick a free port
    with pytest.raises(GroupUnusable, match="n7"):
        GroupSettings("g", "n7", peers)
    with pytest.raises(GroupUnusable, match="preferredLeaderId"):
        GroupSettings("g", "n1", peers, preferred=("n7",))
    with pytest.raises(GroupUnusable, match="one letter and a number"):
        GroupSettings("g", "node", {"node": "h:1"}).follower_id  # noqa: B018
