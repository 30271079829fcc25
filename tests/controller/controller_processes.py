"""Controllers as processes of their own, which can be killed, on members of etcd."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.rig.ports import free_ports


class ControllerProcesses:
    """``n0``, ``n1``, ... ``with`` starts and kills them."""

    def __init__(self, folder: Path, endpoints: str, count: int = 3, **settings: object) -> None:
        self._folder = folder
        self._settings = {"controllerCarrier": "etcd", "etcdEndpoints": endpoints, **settings}
        self.addresses = {f"n{number}": f"127.0.0.1:{port}" for number, port in enumerate(free_ports(count))}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> ControllerProcesses:
        try:
            for id in self.addresses:
                self.start(id)
            for id in self.addresses:
                self.wait_for(id)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        for id in list(self._processes):
            self.kill(id)

    @property
    def peers(self) -> str:
        return ";".join(f"{id}-{address}" for id, address in self.addresses.items())

    def start(self, id: str) -> None:
        home = self._folder / id
        home.mkdir(parents=True, exist_ok=True)
        settings = {
            "bindAddress": "127.0.0.1",
            "controllerDLegerPeers": self.peers,
            "controllerDLegerSelfId": id,
            "controllerStorePath": home,
            **self._settings,
        }
        (home / "controller.conf").write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        command = [sys.executable, "-m", "kerolox", "controller", "-c", str(home / "controller.conf")]
        with (home / "log").open("ab") as log:
            self._processes[id] = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)

    def wait_for(self, id: str) -> None:
        out = self._processes[id].stdout
        assert out is not None
        line = out.readline()
        log = (self._folder / id / "log").read_text()
        assert line.decode() == f"kerolox controller ready on {self.addresses[id]}\n", log

    def kill(self, id: str) -> None:
        process = self._processes.pop(id)
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()

    def pause(self, id: str) -> None:
        os.kill(self._processes[id].pid, signal.SIGSTOP)

    def resume(self, id: str) -> None:
        os.kill(self._processes[id].pid, signal.SIGCONT)

    def log(self, id: str) -> str:
        return (self._folder / id / "log").read_text()
