"""``kerolox access`` at brokers: real ones, which let in only whom they know."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kerolox.access.book_file import decode_book
from kerolox.cli.main import app
from kerolox.net.signing import Credentials
from kerolox.testing.access import ADMIN, secured
from tests.cli.serving import Cluster, running_cluster

NOBODY = "127.0.0.1:1"
ALICE = Credentials("alice", "alice's secret")


class Commands:
    """Commands of a user against two brokers of their own name servers."""

    def __init__(self, first: Cluster, second: Cluster) -> None:
        self.first, self.second = first, second
        self.address, self.other = first.running.address, second.running.address

    def run(
        self, *words: str, who: Credentials | None = ADMIN, stdin: str | None = None
    ) -> tuple[int, str, str]:
        keys = {} if who is None else {
            "KEROLOX_ACCESS_KEY": who.access_key, "KEROLOX_SECRET_KEY": who.secret_key,
        }  # fmt: skip
        environment = {"NAMESRV_ADDR": self.first.address, **keys}
        done = CliRunner().invoke(app, ["access", *words], input=stdin, env=environment)
        return done.exit_code, done.stdout, done.stderr

    def ok(self, *words: str, **how: Any) -> str:
        code, out, errors = self.run(*words, **how)
        assert code == 0, errors
        return out

    def json(self, *words: str, **how: Any) -> Any:
        return json.loads(self.ok(*words, "--json", **how))

    def error(self, *words: str, **how: Any) -> str:
        code, out, errors = self.run(*words, **how)
        assert (code, out) == (1, "")
        return errors


@pytest.fixture(scope="module")
def commands() -> Iterator[Commands]:
    with running_cluster(**secured()) as first, running_cluster(**secured()) as second:
        made = Commands(first, second)
        made.ok("user", "create", "alice", "--password-stdin", stdin=f"{ALICE.secret_key}\n")
        made.ok("policy", "set", "alice", "Cluster:DefaultCluster", "--actions", "Get,Update")
        yield made


def test_users_and_rules_are_those_of_the_broker(commands: Commands) -> None:
    assert commands.json("user", "list", "ali") == [
        {"username": "alice", "userType": "Normal", "userStatus": "enable", "at": [commands.address]}
    ]
    book = commands.first.running.broker.access.book
    assert book.users["alice"].password == ALICE.secret_key
    commands.ok(
        "policy", "set", "alice", "Topic:a", "Topic:b", "--actions", "Pub", "--deny", "-b", commands.address
    )
    (told,) = commands.json("explain", "alice", "Pub", "Topic:a", "-c", "DefaultCluster")
    assert (told["allowed"], told["at"]) == (False, [commands.address])
    commands.ok("policy", "delete", "alice", "Topic:a", "Topic:b")
    assert [one["resource"] for one in commands.json("policy", "list", "alice")] == ["Cluster:DefaultCluster"]
    assert "cluster 'DefaultClustr' does not exist" in commands.error("user", "list", "-c", "DefaultClustr")
    assert "user 'zoe' does not exist" in commands.error("policy", "list", "zoe")


def test_who_is_not_known_learns_nothing(commands: Commands) -> None:
    for words in (
        ("user", "list"),
        ("user", "delete", "alice", "--yes"),
        ("explain", "alice", "Pub", "Topic:a"),
    ):
        assert "access denied" in commands.error(*words, who=None)
        assert "access denied" in commands.error(*words, who=Credentials("admin", "guessed"))
    assert "alice" in commands.first.running.broker.access.book.users


def test_a_password_that_was_not_set_leaves_no_file(commands: Commands, tmp_path: Path) -> None:
    keys = tmp_path / "keys.yml"
    words = ("user", "create", "bob", "--generate", "--client-file", str(keys))
    assert "access denied" in commands.error(*words, who=None)
    assert list(tmp_path.iterdir()) == []
    assert "only Super users" in commands.error(*words, who=ALICE)
    assert list(tmp_path.iterdir()) == []
    commands.ok(*words)
    assert commands.first.running.broker.access.book.users["bob"].password in keys.read_text()
    commands.ok("user", "delete", "bob", "--yes")


def test_copies_between_brokers_and_files(commands: Commands, tmp_path: Path) -> None:
    file = tmp_path / "access.json"
    to_file = ("--from", commands.address, "--to", str(file))
    assert "only Super users receive passwords" in commands.error("user", "copy", *to_file, who=ALICE)
    assert not file.exists()
    assert set(commands.json("user", "copy", "--policies", *to_file)["users"]) == {"admin", "inner", "alice"}
    copied = decode_book(file.read_bytes())
    assert copied.users == commands.first.running.broker.access.book.users
    assert copied.policies == commands.first.running.broker.access.book.policies
    commands.ok("user", "copy", "alice", "--from", str(file), "--to", commands.other)
    commands.ok("policy", "copy", "alice", "--from", commands.address, "--to", commands.other)
    there = commands.second.running.broker.access.book
    assert there.users["alice"].password == ALICE.secret_key
    assert list(map(str, there.policies["alice"].custom)) == ["Cluster:DefaultCluster"]
    commands.ok("user", "delete", "alice", "--yes", "-b", commands.other)


def test_a_broker_that_is_not_there(commands: Commands) -> None:
    assert "cannot connect" in commands.error("user", "list", "-b", NOBODY)
    assert "cannot connect" in commands.error(
        "user", "create", "x", "--generate", "--show-secret", "-b", NOBODY
    )
