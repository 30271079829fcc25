"""One of the two brokers: a process in a network of its own, which leads or follows as it is told. Ours, or
Apache's."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path

from kerolox.replication.link_state import LinkState
from tests.peers.jars import Jars
from tests.peers.processes import JavaBroker
from tests.peers.wire import request
from tests.rig.logs import Log, read_log
from tests.rig.nursery import Nursery
from tests.rig.servers import COMMAND, SHIFTED_COMMAND, NurseryServer
from tests.rig.waiting import wait_until

from .wires import Wires

PORT = 10911
HA_PORT = 10912
GET_BROKER_RUNTIME_INFO = 28
RESYNC_S = 30.0
REFUSED = re.compile(r"""cannot_follow .*? state=(?P<quote>['"])(?P<state>.*?)(?P=quote) reason=""")


class Node:
    """``number`` says which network it is in. Its store stays when it is stopped or killed."""

    def __init__(self, home: Path, number: int, wires: Wires) -> None:
        self.home = home
        self.number = number
        self.store = home / "store"
        self.client_address = f"{wires.ip(number)}:{PORT}"
        self._network = wires.nodes[number]
        self._own = {
            "listenPort": PORT,
            "haListenPort": HA_PORT,
            "brokerIP1": wires.ip(number),
            "brokerIP2": wires.copy_ip(number),
            "storePathRootDir": self.store,
        }

    # --- life -------------------------------------------------------------------------------------------

    def lead(self) -> None:
        """Start as the leader."""
        self.begin({"brokerRole": "SYNC_MASTER", "brokerId": 0})

    def follow(self, ha_address: str = "") -> None:
        """Start as a follower; of whom, name servers say, or where it copies from is given."""
        given = {"haMasterAddress": ha_address} if ha_address else {}
        self.begin({"brokerRole": "SLAVE", "brokerId": 1, **given})

    def begin(self, role: Mapping[str, object]) -> None:
        """Start with these settings beside its own, and return when it serves."""
        raise NotImplementedError

    def end(self) -> None:
        """Stop the clean way."""
        raise NotImplementedError

    def kill(self) -> None:
        raise NotImplementedError

    def process_id(self) -> int:
        raise NotImplementedError

    def freeze(self) -> None:
        """It does nothing, and does not know it."""
        os.kill(self.process_id(), signal.SIGSTOP)
        stat = Path(f"/proc/{self.process_id()}/stat")
        wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", lambda: "frozen", 30)

    def thaw(self) -> None:
        os.kill(self.process_id(), signal.SIGCONT)

    def wipe(self) -> None:
        """Its disk is lost."""
        shutil.rmtree(self.store)

    def resync(self, leader: str) -> None:
        """It does not run: take its log back to what the leader at this address has too."""
        raise NotImplementedError

    # --- what it says -----------------------------------------------------------------------------------

    def told(self) -> dict[str, str]:
        """What it tells of itself; nothing while it does not answer."""
        try:
            answer = request(self.client_address, GET_BROKER_RUNTIME_INFO, timeout=2.0)
            table: dict[str, str] = json.loads(answer.body)["table"]
        except (OSError, ValueError, KeyError):
            return {}
        return table

    def log_end(self) -> int:
        """Where its log ends; -1 while it does not answer."""
        return int(self.told().get("commitLogMaxOffset", -1))

    def log(self) -> Log:
        """All of its log, as its files have it."""
        wait_until(lambda: self.log_end() >= 0, lambda: f"{self.home.name} says where its log ends", 30)
        return read_log(self.store, self.log_end())

    @property
    def copies(self) -> bool:
        return self.told().get("followerState") == LinkState.COPYING.value

    @property
    def mark(self) -> int:
        """How much it has logged; refusals are counted from a mark on."""
        path = self.home / "stderr.log"
        return path.stat().st_size if path.exists() else 0

    def refusals(self, since: int) -> list[str]:
        """The names of what it refused since then, in order. Apache's refuses nothing."""
        path = self.home / "stderr.log"
        text = path.read_bytes()[since:].decode(errors="replace") if path.exists() else ""
        return [LinkState(found["state"]).name for found in REFUSED.finditer(text)]

    def last_words(self) -> str:
        """The end of its log, for error messages."""
        raise NotImplementedError


class OurNode(Node):
    """Ours."""

    def __init__(
        self,
        home: Path,
        number: int,
        wires: Wires,
        nursery: Nursery,
        settings: Mapping[str, object],
        *,
        off_ms: int = 0,
    ) -> None:
        """``off_ms``: how far its wall clock is off."""
        super().__init__(home, number, wires)
        self._settings = settings
        command = ["broker", "-c", str(home / "broker.conf")]
        self._server = NurseryServer(
            home, nursery, self._network.fd, [str(off_ms), *command], function=SHIFTED_COMMAND
        )

    def begin(self, role: Mapping[str, object]) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        lines = [f"{key}={value}" for key, value in {**self._own, **self._settings, **role}.items()]
        (self.home / "broker.conf").write_text("\n".join(lines) + "\n", encoding="utf-8")
        self._server.start()

    def end(self) -> None:
        if code := self._server.stop():
            raise AssertionError(f"{self.home.name} ended with {code}\n{self.last_words()}")

    def kill(self) -> None:
        self._server.kill()

    def process_id(self) -> int:
        return self._server.pid

    def resync(self, leader: str) -> None:
        command = ["store", "resync", str(self.store), "--leader", leader, "--yes"]
        process = self._server.run(COMMAND, [*command, "-c", str(self.home / "broker.conf")])
        with process.stdout as out:
            said = out.read()
        if code := process.wait(RESYNC_S):
            raise AssertionError(
                f"kerolox {' '.join(command)} ended with {code}: {said}\n{self.last_words()}"
            )

    def last_words(self) -> str:
        return self._server.tail() if self.mark else ""


class ApacheNode(Node):
    """Apache's. What its store looks like is the same; what it refuses is nothing."""

    def __init__(
        self, home: Path, number: int, wires: Wires, jars: Jars, settings: Mapping[str, object]
    ) -> None:
        super().__init__(home, number, wires)
        self._process = JavaBroker(
            jars,
            home,
            str(settings["namesrvAddr"]),
            port=PORT,
            ha_port=HA_PORT,
            store=self.store,
            properties={**self._own, **settings},
        )

    def begin(self, role: Mapping[str, object]) -> None:
        self._process.properties.update(role)
        with self._network.inside():
            self._process.start()

    def end(self) -> None:
        self._process.stop()

    def kill(self) -> None:
        self._process.kill()

    def process_id(self) -> int:
        pid = self._process.pid
        assert pid is not None
        return pid

    def last_words(self) -> str:
        return self._process.tail()
