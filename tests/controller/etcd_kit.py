"""Three real members of etcd, on this machine: started, stopped, killed and paused."""

from __future__ import annotations

import json
import os
import shutil
import signal
import ssl
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest

from kerolox.controller.etcd_access import EtcdAccess, read_endpoints
from kerolox.supervise.etcd import EtcdPlace, find_etcd, member_command
from tests.rig.ports import free_ports

START_S = 30.0
MISSING = "etcd is not installed (apt-get install etcd-server)"


class NoEtcd(Exception):
    """The program is not there."""


class EtcdMembers:
    """A cluster of its own, in this folder. ``with`` starts and kills it."""

    def __init__(
        self,
        folder: Path,
        count: int = 3,
        host: str = "127.0.0.1",
        certificate: tuple[Path, Path] | None = None,
    ) -> None:
        program = find_etcd()
        if program is None:
            raise NoEtcd(MISSING)
        ports = free_ports(2 * count)
        self._folder = folder
        self._program = program
        self._certificate = certificate  # and its key: clients speak TLS
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.places = {
            f"e{number}": EtcdPlace(f"{host}:{ports[2 * number]}", f"{host}:{ports[2 * number + 1]}")
            for number in range(count)
        }

    @property
    def endpoints(self) -> str:
        return ",".join(self.url(name) for name in self.places)

    def url(self, name: str) -> str:
        return f"http{'' if self._certificate is None else 's'}://{self.places[name].client}"

    @property
    def access(self) -> EtcdAccess:
        return EtcdAccess(read_endpoints(self.endpoints))

    def access_from(self, name: str) -> EtcdAccess:
        """To all of them, this one first."""
        names = [name, *(each for each in self.places if each != name)]
        return EtcdAccess(tuple((self.places[each].client, False) for each in names))

    def __enter__(self) -> EtcdMembers:
        try:
            for name in self.places:
                self.start(name)
            for name in self.places:
                self.wait_for(name)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        for name in list(self._processes):
            self.kill(name)

    def start(self, name: str) -> None:
        command = member_command(self._program, name, self._folder / name, self.places)
        if self._certificate is not None:
            place = self.places[name].client
            command = [part.replace(f"http://{place}", self.url(name)) for part in command]
            command += ["--cert-file", str(self._certificate[0]), "--key-file", str(self._certificate[1])]
        if warden := shutil.which("setpriv"):  # they go with the tests, however those end
            command = [warden, "--pdeathsig", "KILL", *command]
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / f"{name}.log").open("ab") as out:
            self._processes[name] = subprocess.Popen(command, stdout=out, stderr=out)

    def wait_for(self, name: str) -> None:
        """Until the member answers and has a leader."""
        until_s = time.monotonic() + START_S
        while time.monotonic() < until_s and self._processes[name].poll() is None:
            try:
                trust = None if self._certificate is None else ssl._create_unverified_context()
                with urllib.request.urlopen(f"{self.url(name)}/health", timeout=1, context=trust) as told:
                    if b'"true"' in told.read():
                        return
            except OSError:
                pass
            time.sleep(0.05)
        log = (self._folder / f"{name}.log").read_text(errors="replace")
        raise AssertionError(f"etcd member {name} did not start:\n{log[-3000:]}")

    def leader(self) -> str:
        """The member that leads the others."""
        for name in self.places:
            asked = urllib.request.Request(f"{self.url(name)}/v3/maintenance/status", data=b"{}")
            with urllib.request.urlopen(asked, timeout=5) as answer:
                told = json.load(answer)
            if told["leader"] == told["header"]["member_id"]:
                return name
        raise AssertionError("no member leads")

    def kill(self, name: str) -> None:
        process = self._processes.pop(name)
        process.kill()  # a paused one, too
        process.wait()

    def heal(self) -> None:
        """All of them run."""
        for name in self.places:
            if name in self._processes:
                self.resume(name)
            else:
                self.start(name)
        for name in self.places:
            self.wait_for(name)

    def pause(self, name: str) -> None:
        """Stop it, and wait until each of its threads has stopped."""
        pid = self._processes[name].pid
        os.kill(pid, signal.SIGSTOP)
        while any(
            thread.read_text().rpartition(")")[2].split()[0] not in ("T", "t")
            for thread in Path(f"/proc/{pid}/task").glob("*/stat")
        ):
            time.sleep(0.005)

    def resume(self, name: str) -> None:
        os.kill(self._processes[name].pid, signal.SIGCONT)


def etcd_or_skip(folder: Path, count: int = 3, certificate: tuple[Path, Path] | None = None) -> EtcdMembers:
    """Members that are not started yet; see :func:`require_etcd`."""
    require_etcd()
    return EtcdMembers(folder, count, certificate=certificate)


def require_etcd() -> None:
    """Where there is no etcd, skip loudly or fail as asked."""
    if find_etcd() is not None:
        return
    message = f"NO ETCD: {MISSING}; THE CARRIER OF SEVERAL CONTROLLERS IS NOT TESTED"
    if os.environ.get("KEROLOX_REQUIRE_ETCD") == "1":
        pytest.fail(message, pytrace=False)
    pytest.skip(message)
