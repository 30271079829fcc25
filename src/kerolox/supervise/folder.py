"""Folder of a cluster on one machine: settings, ports, stores, logs, and the list of running servers.

``conf/NAME.conf`` are ordinary configuration files, usable with ``kerolox broker -c`` or ``kerolox nameserver
-c``. They are created once and then authoritative: ports and later changes (by an editor, by
updateBrokerConfig, by a promotion) persist. ``cluster.json`` lists the servers for programs.
"""

from __future__ import annotations

import os
import socket
import time
import zlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import IO, TYPE_CHECKING

import msgspec

from kerolox.atomic_file import write_atomically
from kerolox.errors import KeroloxError, OptionError
from kerolox.protocol.bodies.properties_text import edit_properties, read_properties, write_properties
from kerolox.supervise.embedded import PORTS_APART, bracketed, reachable
from kerolox.supervise.layouts import NAMESERVER, Planned

if TYPE_CHECKING:
    from kerolox.net.dialer import Dialer

FIRST_PORT = 10911
PLACES = 1900  # all ports are below the ephemeral port range
PORT_KEYS = {"controller": "controllerListenPort"}  # servers whose port key is not listenPort
NAMESERVER_PORT, CONTROLLER_PORT = 9876, 9878  # default ports of the commands
NAMESERVER_ADDRESS = f"127.0.0.1:{NAMESERVER_PORT}"
INNER_KEY = "innerClientAuthenticationCredentials"
LEFT_OVER_S = 60.0  # limit for servers of a killed supervisor to stop


class ClusterRuns(KeroloxError):
    """Another process runs a cluster in the folder."""


class NoCluster(KeroloxError):
    """The folder contains no cluster."""


class ServerEntry(msgspec.Struct, kw_only=True):
    """Entry of a server in ``cluster.json``. Its file may lack fields of other versions."""

    name: str
    role: str = ""  # nameserver, controller, etcd; brokers: leader, follower, or replica under a controller
    pid: int | None = None  # None: it does not run
    address: str = ""
    broker: str | msgspec.UnsetType = msgspec.UNSET  # name, of brokers
    broker_id: int | msgspec.UnsetType = msgspec.UNSET
    ha_address: str | msgspec.UnsetType = msgspec.UNSET
    state: str = "stopped"  # or starting, up, waiting (for its restart)
    restarts: int = 0
    data: str = ""
    config: str = ""
    log: str = ""
    like: str


class ClusterFolder:
    """Folder of one cluster, which one process at a time may run."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.file = self.path / "cluster.json"
        self._locks: list[IO[bytes]] = []

    # --- one at a time --------------------------------------------------------------------------------

    def take(self) -> int:
        """Lock the folder for this process, and return the lock descriptor that servers inherit.

        The folder stays locked while any server lives, even if its parent was killed. Raises ClusterRuns.
        """
        (self.path / "conf").mkdir(parents=True, exist_ok=True)
        mine = self._lock("cluster.lock")
        if mine is None and self.holder() is None:
            mine = self._lock("cluster.lock")  # the first attempt met a short check by ``cluster status``
        if mine is None:
            raise ClusterRuns(
                f"process {self.holder() or 'unknown'} runs a cluster in {self.path} already. Show it: "
                f"kerolox cluster status --data {self.path}; stop it: kerolox cluster down --data {self.path}"
            )
        mine.truncate(0)
        mine.write(b"%d\n" % os.getpid())
        mine.flush()
        until_s = time.monotonic() + LEFT_OVER_S
        while (theirs := self._lock("servers.lock")) is None:
            # The previous supervisor was killed. Its servers detect this and stop.
            if time.monotonic() >= until_s:
                left = [f"{one.name} {one.pid}" for one in self.read() if one.pid]
                raise ClusterRuns(
                    f"servers of a killed cluster still run in {self.path} after {LEFT_OVER_S:.0f} s: "
                    f"{', '.join(left) or 'unknown'}. Stop these processes, then start the cluster again"
                )
            time.sleep(0.05)
        return theirs.fileno()

    def holder(self) -> int | None:
        """Return the id of the process that runs the cluster; None if none does."""
        free = self._lock("cluster.lock", keep=False)
        if free is not None:
            free.close()
            return None
        try:
            return int((self.path / "cluster.lock").read_bytes())
        except (OSError, ValueError):
            return None

    def is_left(self) -> bool:
        """Return True if servers run, with or without their supervisor."""
        free = self._lock("servers.lock", keep=False)
        if free is not None:
            free.close()
        return free is None

    def release(self) -> None:
        for lock in self._locks:
            lock.close()
        self._locks.clear()

    def _lock(self, name: str, *, keep: bool = True) -> IO[bytes] | None:
        """Take a lock that is released with its last open descriptor; None if another process holds it."""
        import fcntl

        path = self.path / name
        try:
            # O_NOFOLLOW: another user may have planted a link, and its target would be overwritten.
            file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644), "r+b")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                file.close()
                return None
        except FileNotFoundError:
            raise NoCluster(f"no cluster exists in {self.path}. Start one: kerolox cluster up") from None
        except OSError as error:
            raise KeroloxError(
                f"the lock {path} cannot be opened: {error}. Remove it if it is a link"
            ) from error
        if keep:
            self._locks.append(file)
        return file

    # --- settings -------------------------------------------------------------------------------------

    def prepare(
        self,
        like: str,
        servers: tuple[Planned, ...],
        nameserver: str | None,
        settings: Mapping[str, str],
        etcd: str | None = None,
        access: Mapping[str, str] = MappingProxyType({}),
    ) -> list[Path]:
        """Write the settings of all new servers, and update those of existing servers with the given ones.

        Controllers get the endpoints ``etcd``, or those of the members among the servers; all servers get
        ``access``. Return the paths of the new files.
        """
        self._check_same(like)
        kept = self.settings(NAMESERVER.name)
        host, port = self.nameserver_at(nameserver)
        ports = _FreePorts(host, self)
        number = port or int(kept.get("listenPort", 0)) or ports.take("the name server")
        near = reachable(host)
        places = {NAMESERVER.name: number}
        for one in servers:
            if one.name not in places:
                usual = CONTROLLER_PORT if one.name == "controller-0" and number == NAMESERVER_PORT else 0
                places[one.name] = port_of(self.settings(one.name)) or ports.take(one.name, usual)
        around = _Around(servers, bracketed(near), places, etcd)
        new: list[Path] = []
        for one in servers:
            asked = {"bindAddress": host, PORT_KEYS.get(one.server, "listenPort"): str(places[one.name])}
            asked |= around.settings(one)
            if one.server == "broker":
                asked |= ({} if near != host else {"brokerIP1": host}) | dict(settings)
            if one.server != "etcd-member":
                asked |= access
            path, known = self.config(one.name), self.settings(one.name)
            if not known:
                new.append(path)
                self._write(path, _text(like, one, asked | self._paths(one)))
            elif known != known | asked:
                changed = {key: value for key, value in asked.items() if known.get(key) != value}
                self._write(path, edit_properties(path.read_bytes(), changed).decode())
        return new

    def _write(self, path: Path, text: str) -> None:
        """Write a file atomically; only its owner may read it if it contains a secret."""
        write_atomically(path, text.encode(), private=INNER_KEY in text)

    def nameserver_at(self, given: str | None) -> tuple[str, int]:
        """Return host and port of the name server: as given, as in the previous run, or the default."""
        kept = self.settings(NAMESERVER.name)
        if given is None:
            given = f"{bracketed(kept['bindAddress'])}:{kept['listenPort']}" if kept else NAMESERVER_ADDRESS
        host, _, port = given.rpartition(":")
        return host.strip("[]") or "0.0.0.0", int(port)

    @property
    def is_secured(self) -> bool:
        return self.settings(NAMESERVER.name).get("authenticationEnabled") == "true"

    def dialer(self) -> Dialer:
        """Return a dialer with the credentials and TLS settings that the servers use among themselves."""
        from msgspec.structs import replace

        from kerolox.access.folder import client_tls
        from kerolox.net.dialer import Dialer
        from kerolox.net.signing import parse_credentials

        known = self.settings(NAMESERVER.name)
        own = parse_credentials(known.get(INNER_KEY), INNER_KEY, "accessKey", "secretKey")
        if own is not None and known.get("signatureV2", "off").lower() != "off":
            own = replace(own, form_2=True)
        return Dialer(credentials=own if self.is_secured else None, tls=client_tls(known))

    def _paths(self, one: Planned) -> dict[str, str]:
        place = self.path / one.name
        match one.server:
            case "nameserver":
                return {"kvConfigPath": str(place / "kvConfig.json")}
            case "controller":
                return {"controllerStorePath": str(place)}
            case "etcd-member":
                return {"dataDir": str(place)}
            case _:
                return {"storePathRootDir": str(place)}

    def config(self, name: str) -> Path:
        return self.path / "conf" / f"{name}.conf"

    def log(self, name: str) -> Path:
        return self.path / "logs" / f"{name}.log"

    def settings(self, name: str) -> dict[str, str]:
        """Return the settings in the file of a server; empty if the file does not exist."""
        try:
            return read_properties(self.config(name).read_bytes())
        except FileNotFoundError:
            return {}

    def _check_same(self, like: str) -> None:
        before = {one.like for one in self.read()}
        if before and before != {like}:
            raise OptionError(
                "--like",
                like,
                f"{' or '.join(sorted(before))}, the layout of the cluster in {self.path}, or another --data",
            )

    # --- who runs -------------------------------------------------------------------------------------

    def read(self) -> list[ServerEntry]:
        try:
            return msgspec.json.decode(self.file.read_bytes(), type=list[ServerEntry])
        except FileNotFoundError:
            return []
        except msgspec.MsgspecError as error:
            raise NoCluster(
                f"{self.file} does not contain a list of servers: {error}. Move it away and start again"
            ) from error

    def write(self, servers: list[ServerEntry]) -> None:
        write_atomically(self.file, msgspec.json.format(msgspec.json.encode(servers)) + b"\n")


class _Around:
    """Addresses that the servers of one machine need of each other."""

    def __init__(
        self, servers: tuple[Planned, ...], host: str, ports: Mapping[str, int], etcd: str | None
    ) -> None:
        at = {one.name: f"{host}:{ports[one.name]}" for one in servers}
        self._nameserver = at[NAMESERVER.name]
        self._controllers = {one.name: at[one.name] for one in servers if one.server == "controller"}
        members = [one.name for one in servers if one.server == "etcd-member"]
        self._members = ";".join(f"{name}={at[name]}={host}:{ports[name] + 1}" for name in members)
        self._etcd = etcd or ",".join(f"http://{at[name]}" for name in members)

    def settings(self, one: Planned) -> dict[str, str]:
        match one.server:
            case "controller":
                shared = {"controllerCarrier": "etcd", "etcdEndpoints": self._etcd} if self._etcd else {}
                ids = dict(
                    zip(self._controllers, (f"n{at}" for at in range(len(self._controllers))), strict=True)
                )
                peers = ";".join(f"{ids[name]}-{address}" for name, address in self._controllers.items())
                return {"controllerDLegerPeers": peers, "controllerDLegerSelfId": ids[one.name], **shared}
            case "etcd-member":
                return {"name": one.name, "members": self._members}
            case "broker":
                known = {"namesrvAddr": self._nameserver}
                if self._controllers:
                    known["controllerAddr"] = ";".join(self._controllers.values())
                return known
            case _:
                return {}


class _FreePorts:
    """Free ports. The search begins at a number derived from the folder's path, so that two clusters that
    start at the same moment do not choose the same ports."""

    def __init__(self, host: str, folder: ClusterFolder) -> None:
        self._host = host
        self._next = zlib.crc32(os.fsencode(folder.path)) % PLACES
        self._taken = {port_of(folder.settings(path.stem)) for path in (folder.path / "conf").glob("*.conf")}

    def take(self, who: str, usual: int = 0) -> int:
        """Return a free port: ``usual`` if it is free."""
        if usual and usual not in self._taken and self._is_free(usual):
            self._taken.add(usual)
            return usual
        for _ in range(PLACES):
            port = FIRST_PORT + PORTS_APART * self._next
            self._next = (self._next + 1) % PLACES
            if port not in self._taken and all(self._is_free(one) for one in (port - 2, port, port + 1)):
                self._taken.add(port)
                return port
        last = FIRST_PORT + PORTS_APART * (PLACES - 1)
        raise KeroloxError(f"no free port for {who} on {self._host}, from {FIRST_PORT} to {last}")

    def _is_free(self, port: int) -> bool:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((self._host, port))
            except OSError:
                return False
        return True


def port_of(settings: Mapping[str, str]) -> int:
    """Return the port in a server's settings; 0 if they have none."""
    text = settings.get("listenPort") or settings.get(PORT_KEYS["controller"]) or ""
    return int(text) if text.isdigit() else 0


def _text(like: str, one: Planned, own: Mapping[str, str]) -> str:
    """Return the text of a settings file, in sections by the source of the settings."""
    parts: list[str] = []
    stock = {key: value for key, value in one.stock.items() if key not in own}
    added = {key: value for key, value in one.added.items() if key not in own}
    if stock:
        source = one.source or f"conf/{like}/{one.name}.properties"
        parts.append(f"# RocketMQ's {source}\n" + write_properties(stock))
    parts.append("# for this machine\n" + write_properties(own))
    if added:
        parts.append("# added, to try it out\n" + write_properties(added))
    return "\n".join(parts)
