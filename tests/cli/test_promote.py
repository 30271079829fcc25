"""``kerolox broker promote`` with brokers that are processes, killed and started again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kerolox.blocking import Message, Producer
from kerolox.cli.main import app
from kerolox.supervise.folder import ClusterFolder
from kerolox.supervise.layouts import LAYOUTS

ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "NAMESRV_ADDR"}


class Machine:
    """Some servers of a cluster that is not kept running by anybody."""

    def __init__(self, path: Path) -> None:
        self.folder = ClusterFolder(path)
        self.folder.take()
        self.folder.prepare("2m-2s-async", LAYOUTS["2m-2s-async"], "127.0.0.1:0", {})
        self.processes: dict[str, subprocess.Popen[str]] = {}

    def address(self, name: str) -> str:
        return f"127.0.0.1:{self.folder.settings(name)['listenPort']}"

    def start(self, name: str) -> str:
        """The line that it is ready; or what it says at its end."""
        server = "nameserver" if name == "nameserver" else "broker"
        self.processes[name] = process = subprocess.Popen(
            [sys.executable, "-m", "kerolox", server, "-c", self.folder.config(name), "--log-level", "error"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT,
        )  # fmt: skip
        assert process.stdout is not None
        line = process.stdout.readline()
        return line or process.communicate(timeout=30)[1]

    def kill(self, name: str) -> None:
        process = self.processes[name]
        process.kill()
        process.communicate(timeout=30)

    def run(self, *args: str) -> tuple[int, Any, str]:
        """Exit code, what it printed, and its error."""
        found = CliRunner().invoke(app, [*args, "--json"], env={"NAMESRV_ADDR": self.address("nameserver")})
        printed = json.loads(found.stdout) if found.stdout else None
        return found.exit_code, printed, json.loads(found.stderr)["error"] if found.stderr else ""

    def registered(self) -> dict[int, str]:
        _, brokers, _ = self.run("cluster", "list")
        return {one["id"]: one["address"] for one in brokers}

    def close(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.communicate(timeout=30)
        self.folder.release()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    yield made
    made.close()


def until(machine: Machine, ids: set[int]) -> None:
    end_s = time.monotonic() + 30
    while machine.registered().keys() != ids:
        assert time.monotonic() < end_s, machine.registered()
        time.sleep(0.05)


def send(machine: Machine, count: int) -> set[tuple[int, int]]:
    """Queue and offset of each message."""
    with Producer(machine.address("nameserver"), group="p") as producer:
        receipts = [producer.send(Message("T", b"%d" % number)) for number in range(count)]
    return {(one.queue.queue_id, one.queue_offset) for one in receipts}


def test_a_follower_leads_when_its_leader_was_killed(machine: Machine) -> None:
    for name in ("nameserver", "broker-a", "broker-a-s"):
        assert "ready on" in machine.start(name)
    follower = machine.address("broker-a-s")
    sent = send(machine, 20)
    code, _, error = machine.run("broker", "promote", "--broker", "broker-a")
    assert code == 1
    assert f"{machine.address('broker-a')} leads and answers" in error
    end_s = time.monotonic() + 30
    while True:  # asynchronous: all of it must be there first
        row = machine.run("broker", "followers", "--broker", "broker-a")[1]["followers"][0]
        if row["inSync"] and row["behindBytes"] == 0:
            break
        assert time.monotonic() < end_s, row
        time.sleep(0.05)
    machine.kill("broker-a")
    until(machine, {1})
    code, shown, error = machine.run("broker", "promote", "--broker", "broker-a")
    assert code == 0, error
    assert (shown["broker"], shown["address"], shown["registered"]) == ("broker-a", follower, True)
    assert shown["logEnd"] >= row["acked"]
    assert machine.registered() == {0: follower}
    assert not sent & send(machine, 20)
    # A restart leads again; the old leader is told to follow.
    machine.kill("broker-a-s")
    assert "ready on" in machine.start("broker-a-s")
    until(machine, {0})
    said = machine.start("broker-a")
    assert machine.processes["broker-a"].returncode == 1
    assert f"{follower} leads under this name" in said
    assert f"kerolox store resync {machine.folder.path / 'broker-a'} --leader {follower}" in said
    assert machine.registered() == {0: follower}
    code, _, error = machine.run("broker", "promote", "-b", follower)
    assert code == 1
    assert "is the leader already" in error


def test_which_follower_is_to_be_said(machine: Machine) -> None:
    for name in ("nameserver", "broker-a-s"):
        machine.start(name)
    for words, expected in (
        (("--broker", "broker-x"), "Registered: broker-a"),
        (("--broker", "broker-a", "--id", "3"), "Registered: 1 at"),
        ((), "either a name, or --address"),
        (("--broker", "broker-a", "-b", "127.0.0.1:1"), "either a name, or --address"),
        (("--broker", "broker-a"), "never heard how far its leader was"),
    ):
        code, _, error = machine.run("broker", "promote", *words)
        assert code == 1
        assert expected in error
    code, shown, _ = machine.run("broker", "promote", "--broker", "broker-a", "--accept-loss")
    assert code == 0
    assert shown["logEnd"] == 0
    code, _, error = machine.run("broker", "promote", "--broker", "broker-a")
    assert code == 1
    assert "has no registered follower" in error
