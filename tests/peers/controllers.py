"""Controllers, ours and Apache's of either kind, as child processes, asked over bare sockets."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from kerolox.protocol.bodies.controller import BrokerReplicasInfo, ReplicasInfo
from kerolox.protocol.codes import RequestCode
from tests.rig.ports import free_ports

from .jars import Jars
from .ours import OurServer
from .processes import GUARD, JavaProcess, StartFailed, write_properties
from .wire import request

LEADER_S = 60.0
OURS, DLEDGER, JRAFT = "ours", "dledger", "jraft"
KINDS = (OURS, DLEDGER, JRAFT)


class Member(Protocol):
    """One controller process."""

    address: str

    @property
    def running(self) -> bool: ...

    def start(self) -> None: ...

    def kill(self) -> None: ...

    def finish(self) -> None: ...

    def tail(self) -> str: ...


class JavaController(JavaProcess):
    """One of Apache's controllers: ``properties`` say which of which group it is."""

    kind = "controller"
    heap = (32, 192)

    def __init__(self, jars: Jars, home: Path, address: str, properties: Mapping[str, object]) -> None:
        super().__init__(jars, home)
        self.address = address
        self.properties = {
            "controllerStorePath": home / "state",
            "configStorePath": home / "controller.properties",
            "mappedFileSize": 4 * 1024 * 1024,
            **properties,
        }

    def main(self) -> list[str]:
        config = self.home / "controller.conf"
        write_properties(config, self.properties)
        return [GUARD, "org.apache.rocketmq.controller.ControllerStartup", "-c", str(config)]

    def settings(self) -> dict[str, str]:
        return {**super().settings(), "tls.server.mode": "disabled"}


class OurController(OurServer):
    """``kerolox controller``, on a port it keeps."""

    def __init__(self, home: Path, properties: Mapping[str, object]) -> None:
        self.port = free_ports(1)[0]
        self.address = f"127.0.0.1:{self.port}"
        self._properties = {
            "controllerDLegerPeers": f"n0-{self.address}",
            "controllerStorePath": home / "state",
            **properties,
        }
        super().__init__(
            home,
            ["controller", "-c", str(home / "controller.conf"), "--parent", str(os.getpid())],
            rf"ready on \S+:{self.port}\b",
        )

    def start(self) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        write_properties(self.home / "controller.conf", self._properties)
        super().start()


class Controllers:
    """One controller or a group of them, that elect the masters of brokers."""

    def __init__(self, kind: str, members: Sequence[Member]) -> None:
        self.kind = kind
        self.members = list(members)

    @property
    def addresses(self) -> str:
        """All of them, as brokers' ``controllerAddr``."""
        return ";".join(member.address for member in self.members)

    def start(self) -> None:
        """Start all that do not run, and wait for one that leads."""
        for member in self.members:
            if not member.running:
                member.start()
        self.wait_leader()

    def leader(self) -> Member | None:
        """The one that says that it leads, if one does."""
        for member in self.members:
            if not member.running:
                continue
            try:
                answer = request(member.address, RequestCode.CONTROLLER_GET_METADATA_INFO)
            except OSError:
                continue
            if answer.ext_fields.get("isLeader") == "true":
                return member
        return None

    def wait_leader(self, timeout_s: float = LEADER_S) -> Member:
        deadline = time.monotonic() + timeout_s
        while (found := self.leader()) is None:
            if time.monotonic() > deadline:
                tails = "\n".join(member.tail() for member in self.members)
                raise StartFailed(f"no {self.kind} controller leads after {timeout_s:g} s\n{tails}")
            time.sleep(0.1)
        return found

    def replicas(self, name: str) -> ReplicasInfo | None:
        """What the leading controller says of a broker name; None while none leads, or knows of it."""
        leader = self.leader()
        if leader is None:
            return None
        try:
            asked = json.dumps([name]).encode()
            answer = request(leader.address, RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=asked)
        except OSError:
            return None
        if answer.code != 0:
            return None
        return BrokerReplicasInfo.decode(answer.body).replicas_info_table.get(name)

    def finish(self) -> None:
        for member in self.members:
            member.finish()


def make_controllers(
    jars: Jars | None,
    kind: str,
    home: Path,
    *,
    count: int = 1,
    properties: Mapping[str, object] | None = None,
) -> Controllers:
    """``count`` controllers of one kind, not started yet; ours need no jars."""
    more = dict(properties or {})
    if kind == OURS:
        if count != 1:
            raise ValueError("several of ours need a carrier that they share")
        return Controllers(kind, [OurController(home / "controller", more)])
    assert jars is not None
    addresses = [f"127.0.0.1:{port}" for port in free_ports(count)]
    if kind == DLEDGER:
        shared: dict[str, object] = {
            "controllerDLegerGroup": "group1",
            "controllerDLegerPeers": ";".join(f"n{at}-{address}" for at, address in enumerate(addresses)),
        }
        own: list[dict[str, object]] = [{"controllerDLegerSelfId": f"n{at}"} for at in range(count)]
    else:
        rafts = [f"127.0.0.1:{port}" for port in free_ports(count)]
        shared = {
            "controllerType": "jRaft",
            "jRaftInitConf": ",".join(rafts),
            "jRaftControllerRPCAddr": ",".join(addresses),
        }
        own = [{"jRaftServerId": raft} for raft in rafts]
    members = [
        JavaController(jars, home / f"controller-{at}", address, {**shared, **own[at], **more})
        for at, address in enumerate(addresses)
    ]
    return Controllers(kind, members)
