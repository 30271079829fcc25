"""Whom ``kerolox up`` lets in: this machine, known users, or everybody who was said to be."""

from __future__ import annotations

import json
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kerolox.access.book_file import decode_book
from kerolox.access.folder import AccessFolder
from kerolox.cli.main import app
from kerolox.net.address import is_loopback
from tests.cli.test_up import ENVIRONMENT, FREE, KEROLOX, READY

ANYWHERE = ["--nameserver-listen", "0.0.0.0:0", "--broker-listen", "0.0.0.0:0"]


class Secured:
    """A running ``up --access``, and commands with the lines it printed, or without."""

    def __init__(self, *args: str) -> None:
        self.process = subprocess.Popen(
            [*KEROLOX, "up", "--access", *args],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT,
        )  # fmt: skip
        assert self.process.stdout is not None
        lines = [self.process.stdout.readline().rstrip("\n") for _ in range(2)]
        assert READY.match(lines[0]), self.process.communicate()
        assert lines[1] == "Access control is on. Set these variables for clients:"
        self.variables: dict[str, str] = {}
        for _ in range(4 if "0.0.0.0:0" in args else 2):
            name, _, value = (
                self.process.stdout.readline().removeprefix("export ").rstrip("\n").partition("=")
            )
            self.variables[name] = value
        self.said = "\n".join(lines)

    def run(self, *words: str, fails: bool | None = False, **variables: str) -> str:
        """What a command printed; with ``fails`` to stderr. None: either may be."""
        environment = {"NAMESRV_ADDR": self.variables["NAMESRV_ADDR"], **variables}
        done = CliRunner().invoke(app, words, env=environment)
        assert fails is None or (done.exit_code != 0) == fails, done.output
        return done.stderr if fails else done.stdout


@contextmanager
def running(*args: str) -> Iterator[Secured]:
    up = Secured(*args)
    try:
        yield up
    finally:
        up.process.terminate()
        out, log = up.process.communicate(timeout=60)
        assert (up.process.returncode, out) == (0, ""), log


def wait_until(is_so: Callable[[], bool]) -> None:
    """The name server learns of users and rules when it looks at the file next."""
    until_s = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < until_s
        time.sleep(0.05)


def command_lines(parent: int) -> list[str]:
    """Of all processes that this one has started: what everybody on the machine can read."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [Path(f"/proc/{child}/cmdline").read_text() for child in children]


def refused(*args: str) -> str:
    done = CliRunner().invoke(app, [*args])
    assert (done.exit_code, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    return line


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "[::]", "", "broker.example.com"])
def test_beyond_this_machine_it_must_be_said_who_comes_in(host: str, tmp_path: Path) -> None:
    for option in ("--nameserver-listen", "--broker-listen"):
        line = refused("up", "--data", str(tmp_path), option, f"{host}:0")
        assert "--access" in line
        assert "--open" in line
    assert list(tmp_path.iterdir()) == []


def test_loopback() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.8.9.1", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "localhost.example.com", "")))


def test_users_that_were_there_are_not_forgotten(tmp_path: Path) -> None:
    CliRunner().invoke(app, ["access", "init", str(tmp_path)])
    line = refused("up", "--data", str(tmp_path), *FREE)
    assert f"{tmp_path / 'access.json'} has users" in line
    assert "either --access or --open" in refused("up", "--data", str(tmp_path), "--access", "--open")


def test_print_config_shows_no_secret_and_makes_nothing(tmp_path: Path) -> None:
    words = ["up", "--data", str(tmp_path / "data"), "--access", *ANYWHERE, "--print-config", "--json"]
    shown = json.loads(CliRunner().invoke(app, words).stdout)
    for server in ("nameserver", "broker-a"):
        assert shown[server]["authenticationEnabled"] == {"value": "true", "source": "kerolox up"}
        assert shown[server]["authorizationEnabled"]["value"] == "true"
        assert shown[server]["innerClientAuthenticationCredentials"]["value"] == "********"
        assert shown[server]["tls.server.mode"]["value"] == "enforcing"
    assert not (tmp_path / "data").exists()


def test_up_with_access_lets_in_who_has_the_lines_it_printed(tmp_path: Path) -> None:
    with running("--data", str(tmp_path), *FREE) as up:
        assert set(up.variables) == {"NAMESRV_ADDR", "KEROLOX_KEYS_FILE"}
        keys = up.variables
        secret = decode_book((tmp_path / "access.json").read_bytes()).users["admin"].password
        assert secret not in up.said
        assert secret in Path(keys["KEROLOX_KEYS_FILE"]).read_text()
        for name in ("access.json", "tools.yml"):
            assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600

        up.run("send", "orders", "hello", **keys)
        tailed = up.run("tail", "orders", "--from", "0", "--count", "1", "--json", **keys)
        assert json.loads(tailed)["body"] == "hello"

        for words in (
            ("send", "orders", "x"),
            ("tail", "orders"),
            ("topic", "list"),
            ("access", "user", "list"),
        ):
            assert "access denied" in up.run(*words, fails=True)
        wrong = {"KEROLOX_ACCESS_KEY": "admin", "KEROLOX_SECRET_KEY": "guessed"}
        assert "access denied" in up.run("send", "orders", "x", fails=True, **wrong)

        # A user with a rule may do what it says, and nothing else.
        up.run(
            "access",
            "user",
            "create",
            "alice",
            "--generate",
            "--client-file",
            str(tmp_path / "a.yml"),
            **keys,
        )
        up.run("access", "policy", "set", "alice", "Topic:orders", "--actions", "Pub", **keys)
        alice = {"KEROLOX_KEYS_FILE": str(tmp_path / "a.yml")}
        wait_until(lambda: up.run("topic", "route", "orders", fails=None, **alice).startswith("topic orders"))
        up.run("send", "orders", "from alice", **alice)
        assert "no permission" in up.run("send", "bills", "from alice", fails=True, **alice)
        told = json.loads(up.run("access", "explain", "alice", "Pub", "Topic:bills", "--json", **keys))
        assert [one["allowed"] for one in told] == [False]

    with running("--data", str(tmp_path), *FREE) as up:  # the same users again
        assert up.variables["KEROLOX_KEYS_FILE"] == keys["KEROLOX_KEYS_FILE"]
        assert json.loads(up.run("topic", "list", "--json", **up.variables)) == ["orders"]


def test_several_brokers_share_their_users(tmp_path: Path) -> None:
    with running("--data", str(tmp_path), "--brokers", "2", *FREE) as up:
        secret = decode_book((tmp_path / "access.json").read_bytes()).users["inner"].password
        started = command_lines(up.process.pid)
        assert len(started) == 2
        assert all(str(tmp_path) in line and secret not in line for line in started)
        keys = up.variables
        up.run("access", "user", "create", "alice", "--generate", "--show-secret", **keys)
        up.run("access", "policy", "set", "alice", "Topic:a", "Group:b", "--actions", "Sub", **keys)
        (alice,) = json.loads(up.run("access", "user", "list", "alice", "--json", **keys))
        assert len(alice["at"]) == 2
        rules = json.loads(up.run("access", "policy", "list", "alice", "--json", **keys))
        assert [(one["resource"], len(one["at"])) for one in rules] == [("Group:b", 2), ("Topic:a", 2)]
        up.run("access", "policy", "delete", "alice", "--all", **keys)
        up.run("access", "user", "delete", "alice", "--yes", **keys)
        assert "does not exist" in up.run("access", "user", "delete", "alice", "--yes", fails=True, **keys)


def test_beyond_this_machine_servers_speak_tls_alone(tmp_path: Path) -> None:
    with running("--data", str(tmp_path), *ANYWHERE) as up:
        keys = up.variables
        assert set(keys) == {
            "NAMESRV_ADDR", "KEROLOX_KEYS_FILE", "KEROLOX_CLIENT_TLS", "KEROLOX_CLIENT_TLS_CA",
        }  # fmt: skip
        assert stat.S_IMODE((tmp_path / "tls-server.pem").stat().st_mode) == 0o600
        assert "PRIVATE" not in Path(keys["KEROLOX_CLIENT_TLS_CA"]).read_text()
        up.run("send", "orders", "hello", **keys)
        tailed = up.run("tail", "orders", "--from", "0", "--count", "1", "--json", **keys)
        assert json.loads(tailed)["body"] == "hello"
        plain = {name: keys[name] for name in ("NAMESRV_ADDR", "KEROLOX_KEYS_FILE")}
        assert "kerolox: " in up.run("topic", "list", fails=True, **plain)
        other = {**keys, "KEROLOX_CLIENT_TLS_CA": str(other_authority(tmp_path / "other"))}
        assert "certificate" in up.run("topic", "list", fails=True, **other).lower()


def other_authority(path: Path) -> Path:
    folder = AccessFolder(path)
    folder.path.mkdir()
    folder.make_certificate()
    return folder.authority
