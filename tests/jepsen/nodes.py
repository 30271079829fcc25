"""The processes: what each is, and what can be done to it. Each has a place in the network, a clock and a
disk of its own; the disk stays when the process ends."""

from __future__ import annotations

import json
import os
import shutil
import signal
from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from kerolox.supervise.etcd import EtcdPlace, find_etcd, member_command
from tests.peers.wire import request
from tests.rig.logs import Log, read_log
from tests.rig.nursery import Child, Nursery
from tests.rig.servers import NurseryServer
from tests.rig.waiting import wait_until

from .disks import Disks
from .programs import POWER_OFF
from .shifted_clock import ClockPage
from .wires import Wires

BROKER_PORT = 10911
HA_PORT = 10912
CONTROLLER_PORT = 9878
NAMESERVER_PORT = 9876
ETCD_PORT = 2379
ETCD_PEER_PORT = 2380
# What the nursery has ready.
IMPORTS = ("tests.jepsen.programs", "kerolox.cli.main")
GET_BROKER_RUNTIME_INFO = 28
GONE_S = 30.0
FEW_WORDS = ("--logger", "zap", "--log-level", "error")


class Node:
    """``name`` says where it is. The settings of a file, and a program that reads it."""

    program = ""
    port = 0
    disk_bytes = 96 << 20

    def __init__(
        self,
        name: str,
        folder: Path,
        wires: Wires,
        disks: Disks,
        nursery: Nursery,
        settings: Mapping[str, object],
    ) -> None:
        self.name = name
        self.home = folder / name
        self.home.mkdir(parents=True, exist_ok=True)
        self.disk = disks.add(name, self.disk_bytes)
        self.ip = wires.ips[name]
        self.address = f"{self.ip}:{self.port}"
        self.clock = ClockPage(self.home / "clock")
        self.config = self.home / "settings.conf"
        self.is_frozen = False
        self.is_running = False
        self._disks = disks
        lines = [f"{key}={value}" for key, value in {**self.own_settings(), **settings}.items()]
        self.config.write_text("\n".join(lines) + "\n", encoding="utf-8")
        self._server = NurseryServer(
            self.home, nursery, wires.places[name].fd, self.words(),
            function=f"tests.jepsen.programs:{self.program}",
        )  # fmt: skip

    def own_settings(self) -> dict[str, object]:
        raise NotImplementedError

    def words(self) -> list[str]:
        return [str(self.config), str(self.clock.path)]

    # --- life -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Return when it serves."""
        if not self.is_running:
            self._server.start()
            self.is_running = True

    def end(self) -> None:
        """Stop the clean way."""
        self.is_running = False
        if code := self._server.stop():
            raise AssertionError(f"{self.name} ended with {code}\n{self.last_words()}")

    def kill(self) -> None:
        self.is_running = self.is_frozen = False
        self._server.kill()

    @property
    def has_ended(self) -> bool:
        """It runs no more, though nobody ended it."""
        return self.is_running and not self._server.running

    @property
    def pid(self) -> int:
        return self._server.pid

    def freeze(self) -> None:
        """It does nothing, and does not know it."""
        os.kill(self.pid, signal.SIGSTOP)
        stat = Path(f"/proc/{self.pid}/stat")
        wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", lambda: "frozen", GONE_S)
        self.is_frozen = True

    def thaw(self) -> None:
        if self.is_frozen:
            os.kill(self.pid, signal.SIGCONT)
            self.is_frozen = False

    def wipe(self) -> None:
        """It does not run, and its disk is another one."""
        for path in self.disk.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    def fill_disk(self, leave_bytes: int) -> None:
        self._disks.fill(self.name, leave_bytes)

    def make_room(self) -> None:
        self._disks.make_room(self.name)

    def close(self) -> None:
        """End it; its files stay."""
        self.thaw()
        self.kill()
        self.clock.close()

    def log_text(self) -> str:
        path = self.home / "stderr.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def last_words(self, count: int = 25) -> str:
        return "\n".join(self.log_text().splitlines()[-count:])


class NameServerNode(Node):
    program = "nameserver"
    port = NAMESERVER_PORT

    def own_settings(self) -> dict[str, object]:
        return {
            "listenPort": self.port,
            "kvConfigPath": self.disk / "kv.json",
            "configStorePath": self.disk / "namesrv.properties",
        }


class ControllerNode(Node):
    program = "controller"
    port = CONTROLLER_PORT

    def own_settings(self) -> dict[str, object]:
        return {"controllerStorePath": self.disk / "state"}

    @property
    def state_file(self) -> Path:
        return self.disk / "state" / "controller.state"


class BrokerNode(Node):
    """With ``power`` its disk can lose what was not flushed."""

    program = "broker"
    port = BROKER_PORT
    power = False

    def own_settings(self) -> dict[str, object]:
        return {
            "listenPort": BROKER_PORT,
            "haListenPort": HA_PORT,
            "brokerIP1": self.ip,
            "brokerIP2": self.ip,
            "storePathRootDir": self.store,
        }

    def words(self) -> list[str]:
        return [*super().words(), "power" if self.power else ""]

    @property
    def store(self) -> Path:
        return self.disk / "store"

    def lose_power(self, seed: int) -> None:
        """What was not flushed is gone, as far as chance says; so is the process."""
        self.clock.lose_power(seed)
        os.kill(self.pid, POWER_OFF)
        wait_until(lambda: not self._server.running, lambda: f"{self.name} is without power", GONE_S)
        self.is_running = self.is_frozen = False

    def told(self) -> dict[str, str]:
        """What it tells of itself; nothing while it does not answer."""
        try:
            answer = request(self.address, GET_BROKER_RUNTIME_INFO, timeout=1.0)
            table: dict[str, str] = json.loads(answer.body)["table"]
        except (OSError, ValueError, KeyError):
            return {}
        return table

    def log_end(self) -> int:
        """Where its log ends; -1 while it does not answer."""
        return int(self.told().get("commitLogMaxOffset", -1))

    def log(self, end: int) -> Log:
        return read_log(self.store, end)


class CopiedBroker:
    """A second process with the identity of a broker, on a copy of its store, where another node is."""

    def __init__(self, broker: BrokerNode, place: Node, wires: Wires, nursery: Nursery) -> None:
        self._home = place.home / f"copy-of-{broker.name}"
        self._store = place.disk / "copy"
        self._name = broker.name
        self.clock = ClockPage(place.home / "clock-of-copy")
        shutil.rmtree(self._store, ignore_errors=True)
        shutil.copytree(broker.store, self._store, copy_function=_copied, dirs_exist_ok=True)
        self._home.mkdir(exist_ok=True)
        lines = broker.config.read_text(encoding="utf-8").splitlines()
        own = {"brokerIP1": place.ip, "brokerIP2": place.ip, "storePathRootDir": self._store}
        lines = [line for line in lines if line.partition("=")[0] not in own]
        config = self._home / "settings.conf"
        config.write_text("\n".join([*lines, *(f"{key}={value}" for key, value in own.items()), ""]))
        self._server = NurseryServer(
            self._home, nursery, wires.places[place.name].fd, [str(config), str(self.clock.path), ""],
            function="tests.jepsen.programs:broker",
        )  # fmt: skip

    def start(self) -> None:
        self._server.start()

    def wrong(self) -> list[str]:
        """It is refused by name, and takes no role."""
        log = self._home / "stderr.log"
        text = log.read_text(errors="replace") if log.exists() else ""
        wrong = [
            f"the copy of {self._name}: {word}" for word in ("broker_elected", "broker_leads") if word in text
        ]
        if "identity_taken" not in text:
            wrong.append(f"the copy of {self._name} was not refused: {text[-2000:]}")
        return wrong

    def close(self) -> None:
        self._server.kill()
        self.clock.close()
        shutil.rmtree(self._store, ignore_errors=True)
        shutil.rmtree(self._home, ignore_errors=True)


def _copied(source: str, target: str) -> None:
    """Files come and go while a broker runs."""
    try:
        shutil.copy2(source, target)
    except FileNotFoundError:
        pass


class PoweredBrokerNode(BrokerNode):
    power = True


class EtcdNode(Node):
    """A member of etcd. Its clock cannot be moved, and one that was wiped is another member."""

    program = "etcd"
    port = ETCD_PORT
    disk_bytes = 512 << 20  # it takes 64 MiB for each file of its log beforehand

    def __init__(
        self,
        name: str,
        folder: Path,
        wires: Wires,
        disks: Disks,
        nursery: Nursery,
        settings: Mapping[str, object],
    ) -> None:
        super().__init__(name, folder, wires, disks, nursery, settings)
        self._process: Child | None = None
        self.members: Mapping[str, EtcdPlace] = {}  # by name
        self.is_new = True

    def own_settings(self) -> dict[str, object]:
        return {}

    @property
    def place(self) -> EtcdPlace:
        return EtcdPlace(self.address, f"{self.ip}:{ETCD_PEER_PORT}")

    @property
    def peer_url(self) -> str:
        return f"http://{self.place.peer}"

    @property
    def client_url(self) -> str:
        return f"http://{self.address}"

    def start(self) -> None:
        if self.is_running:
            return
        program = find_etcd()
        assert program is not None, "etcd is not installed (apt-get install etcd-server)"
        words = member_command(program, self.name, self.disk / "etcd", self.members)
        words += ["--initial-cluster-state", "new" if self.is_new else "existing", *FEW_WORDS]
        self._process = self._server.run("tests.jepsen.programs:execute", words)
        self.is_running = True

    @property
    def has_ended(self) -> bool:
        return self.is_running and self._process is not None and self._process.poll() is not None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def end(self) -> None:
        self.kill()

    def kill(self) -> None:
        self.is_running = self.is_frozen = False
        if self._process is not None:
            self._process.kill()
            self._process.wait(GONE_S)
            self._process.stdout.close()

    @property
    def is_healthy(self) -> bool:
        """It can read, so it has a leader."""
        try:
            self.call("kv/range", {"key": "AA=="})
        except (OSError, ValueError):
            return False
        return True

    def value(self, key: str) -> str:
        """What it has under a key, as the gateway writes it."""
        kvs = self.call("kv/range", {"key": b64encode(key.encode()).decode()})["kvs"]
        return str(kvs[0]["value"])

    def put(self, key: str, value: str) -> None:
        self.call("kv/put", {"key": b64encode(key.encode()).decode(), "value": value})

    def call(self, what: str, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Ask it by its gateway. Raises OSError."""
        data = json.dumps(asked).encode()
        with urlopen(Request(f"{self.client_url}/v3/{what}", data), timeout=1.0) as answer:
            told: dict[str, Any] = json.loads(answer.read())
        return told
