"""``kerolox access`` on a file: what a stopped server will know."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kerolox.access.book import Book
from kerolox.access.book_file import decode_book
from kerolox.cli.access_places import FileAccess, change_all, read_all
from kerolox.cli.main import app
from kerolox.client.errors import NotEverywhere
from kerolox.errors import OptionError
from kerolox.protocol.bodies.access import User

runner = CliRunner()


def run(*args: str, stdin: str | None = None) -> tuple[int, str, str]:
    result = runner.invoke(app, ["access", *args], input=stdin)
    return result.exit_code, result.stdout, result.stderr


def ok(*args: str, stdin: str | None = None) -> str:
    code, out, errors = run(*args, stdin=stdin)
    assert code == 0, errors
    return out


def as_json(*args: str, stdin: str | None = None) -> Any:
    return json.loads(ok(*args, "--json", stdin=stdin))


def error(*args: str, stdin: str | None = None) -> str:
    code, out, errors = run(*args, stdin=stdin)
    assert (code, out) == (1, "")
    (line,) = errors.splitlines()
    assert line.startswith("kerolox: ")
    return line


@pytest.fixture
def file(tmp_path: Path) -> Path:
    ok("init", str(tmp_path / "made"))
    return tmp_path / "made" / "access.json"


def book(path: Path) -> Book:
    return decode_book(path.read_bytes())


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_init_makes_users_keys_and_settings_and_shows_no_secret(tmp_path: Path) -> None:
    shown = ok("init", str(tmp_path))
    users = book(tmp_path / "access.json").users
    assert {name: user.is_super for name, user in users.items()} == {"admin": True, "inner": True}
    secrets = [user.password for user in users.values()]
    assert len(set(secrets)) == 2
    assert all(len(secret) == 32 and secret not in shown for secret in secrets)
    keys, settings = (tmp_path / name for name in ("tools.yml", "access.conf"))
    assert keys.read_text() == f'accessKey: "admin"\nsecretKey: "{users["admin"].password}"\n'
    assert users["inner"].password in settings.read_text()
    assert users["admin"].password not in settings.read_text()
    assert [mode(path) for path in (tmp_path / "access.json", keys, settings)] == [0o600] * 3
    assert "innerClientAuthenticationCredentials=********" in shown
    assert f"export KEROLOX_KEYS_FILE={keys}" in shown


def test_init_overwrites_nothing(tmp_path: Path) -> None:
    (tmp_path / "tools.yml").write_text("mine")
    assert "tools.yml exists and is not overwritten" in error("init", str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["tools.yml"]
    ok("init", str(tmp_path / "other"))
    before = (tmp_path / "other" / "access.json").read_bytes()
    assert "is not overwritten" in error("init", str(tmp_path / "other"))
    assert (tmp_path / "other" / "access.json").read_bytes() == before


def test_init_shows_secrets_when_asked(tmp_path: Path) -> None:
    made = as_json("init", str(tmp_path), "--user", "root", "--inner", "servers", "--show-secrets")
    users = book(tmp_path / "access.json").users
    assert made["keys"] == {"accessKey": "root", "secretKey": users["root"].password}
    assert json.loads(made["settings"]["innerClientAuthenticationCredentials"]) == {
        "accessKey": "servers",
        "secretKey": users["servers"].password,
    }
    assert "a name different" in error("init", str(tmp_path / "x"), "--user", "a", "--inner", "a")


def test_the_settings_are_those_of_servers(tmp_path: Path) -> None:
    from kerolox.broker.options import BrokerOptions
    from kerolox.controller.options import ControllerOptions
    from kerolox.nameserver.options import NamesrvOptions
    from kerolox.options import load

    ok("init", str(tmp_path))
    text = (tmp_path / "access.conf").read_text()
    for role in (BrokerOptions, NamesrvOptions, ControllerOptions):
        loaded = load(role, file_text=text)
        assert not loaded.unknown
        own = loaded.options.own_credentials  # type: ignore[attr-defined]
        assert own.secret_key == book(tmp_path / "access.json").users["inner"].password
        assert own.secret_key not in str(loaded.rows())  # --print-config


def test_users(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    at = ("--file", str(file))
    made = as_json("user", "create", "alice", "--password-stdin", *at, stdin="alice's secret\n")
    assert made == {
        "username": "alice", "userType": "Normal", "userStatus": "enable", "at": [str(file)],
        "clientFile": None,
    }  # fmt: skip
    assert book(file).users["alice"].password == "alice's secret"
    assert "exists at" in error("user", "create", "alice", "--password-stdin", *at, stdin="x\n")
    assert [one["username"] for one in as_json("user", "list", *at)] == ["admin", "alice", "inner"]
    assert as_json("user", "list", "ali", *at) == [
        {"username": "alice", "userType": "Normal", "userStatus": "enable", "at": [str(file)]}
    ]
    assert "alice's secret" not in ok("user", "list", *at)
    assert "no user name contains 'zoe'" in error("user", "list", "zoe", *at)

    ok("user", "update", "alice", "--disable", "--type", "super", *at)
    user = book(file).users["alice"]
    assert (user.is_enabled, user.is_super, user.password) == (False, True, "alice's secret")
    assert "something to change" in error("user", "update", "alice", *at)
    assert "Did you mean alice?" in error("user", "update", "alicee", "--enable", *at)

    assert "alice was deleted" in ok("user", "delete", "alice", "--yes", *at)
    assert "user 'alice' does not exist" in error("user", "delete", "alice", "--yes", *at)
    assert "access init" in error("user", "list", "--file", "missing.json")


def test_passwords_are_typed_twice(file: Path) -> None:
    code, out, errors = run("user", "create", "alice", "--file", str(file), stdin="one two\none two\n")
    assert code == 0
    assert book(file).users["alice"].password == "one two"
    assert "one two" not in out + errors
    assert run("user", "create", "bob", "--file", str(file), stdin="one\ntwo\n")[0] != 0
    assert "a line with the password" in error(
        "user", "create", "bob", "--password-stdin", "--file", str(file), stdin="\n"
    )
    assert "bob" not in book(file).users


def test_passwords_that_are_made_go_into_a_file(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    at = ("--file", str(file))
    shown = ok("user", "create", "alice", "--generate", *at)
    keys = tmp_path / "alice.yml"
    first = book(file).users["alice"].password
    assert first in keys.read_text()
    assert first not in shown
    assert mode(keys) == 0o600
    ok("user", "update", "alice", "--generate", *at)  # its own file is renewed
    second = book(file).users["alice"].password
    assert second != first
    assert second in keys.read_text()
    assert "does not contain keys of bob" in error(
        "user", "create", "bob", "--generate", "--client-file", str(keys), *at
    )
    assert "bob" not in book(file).users
    # What was not done leaves no keys behind.
    assert "does not exist" in error("user", "update", "zoe", "--generate", *at)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alice.yml", "made"]
    made = as_json("user", "create", "carol", "--generate", "--show-secret", *at)
    assert made["password"] == book(file).users["carol"].password
    assert not (tmp_path / "carol.yml").exists()
    assert "--client-file" in error("user", "create", "../dave", "--generate", *at)


def test_rules(file: Path) -> None:
    at = ("--file", str(file))
    ok("user", "create", "alice", "--generate", "--show-secret", *at)
    assert "alice has no rules" not in ok("policy", "list", "alice", *at)
    shown = ok("policy", "set", "alice", "Topic:orders", "Group:shop-*", "--actions", "pub,Sub", *at)
    assert "allow Pub/Sub on Topic:orders" in shown
    ok("policy", "set", "alice", "topic:secret*", "--actions", "All", "--deny", "--from", "10.0.0.0/8", *at)
    ok("policy", "set", "alice", "*", "--actions", "Get", "--policy", "default", *at)
    listed = [
        (one["policyType"], one["resource"], one["actions"], one["sourceIps"], one["decision"])
        for one in as_json("policy", "list", "alice", *at)
    ]
    assert listed == [
        ("Custom", "Group:shop-*", ["Pub", "Sub"], [], "Allow"),
        ("Custom", "Topic:orders", ["Pub", "Sub"], [], "Allow"),
        ("Custom", "Topic:secret*", ["All"], ["10.0.0.0/8"], "Deny"),
        ("Default", "*", ["Get"], [], "Allow"),
    ]
    assert len(as_json("policy", "list", "--resource", "shop", *at)) == 1
    ok("policy", "set", "alice", "Topic:orders", "--actions", "Sub", *at)  # in place of the one before
    assert as_json("policy", "list", "--resource", "orders", *at)[0]["actions"] == ["Sub"]

    assert "'Publish' is not an action" in error("policy", "set", "alice", "*", "--actions", "Publish", *at)
    assert "is not a resource" in error("policy", "set", "alice", "orders", "--actions", "Pub", *at)
    assert "user 'zoe' does not exist" in error("policy", "set", "zoe", "*", "--actions", "Pub", *at)
    assert "no rule has a resource that contains 'nowhere'" in error(
        "policy", "list", "--resource", "nowhere", *at
    )
    assert "has no Custom rule for Topic:order" in error("policy", "delete", "alice", "Topic:order", *at)
    assert "either resources or --all" in error("policy", "delete", "alice", *at)

    ok("policy", "delete", "alice", "Topic:orders", *at)
    ok("policy", "delete", "alice", "*", "--policy", "Default", *at)
    assert [one["resource"] for one in as_json("policy", "list", *at)] == ["Group:shop-*", "Topic:secret*"]
    ok("policy", "delete", "alice", "--all", *at)
    assert as_json("policy", "list", "alice", *at) == []
    assert "requests that no rule allows are denied" in ok("policy", "list", "alice", *at)
    assert "has no rules" in error("policy", "delete", "alice", "--all", *at)


def test_copies_between_files(file: Path, tmp_path: Path) -> None:
    at = ("--file", str(file))
    ok("user", "create", "alice", "--password-stdin", *at, stdin="secret\n")
    ok("policy", "set", "alice", "Topic:orders", "--actions", "Pub", *at)
    other = tmp_path / "other.json"
    between = ("--from", str(file), "--to", str(other))
    assert as_json("user", "copy", "alice", *between)["users"] == ["alice"]
    assert list(book(other).users) == ["alice"]
    assert book(other).users["alice"].password == "secret"
    assert mode(other) == 0o600
    ok("policy", "set", "alice", "Topic:old", "--actions", "Pub", "--file", str(other))
    assert as_json("policy", "copy", *between)["users"] == ["alice"]
    assert [one["resource"] for one in as_json("policy", "list", "--file", str(other))] == ["Topic:orders"]
    assert set(as_json("user", "copy", "--policies", *between)["users"]) == {"admin", "inner", "alice"}
    assert "user 'zoe' does not exist" in error("user", "copy", "zoe", *between)
    assert "a place different" in error("user", "copy", "--from", str(file), "--to", str(file))


def test_explain(file: Path) -> None:
    at = ("--file", str(file))
    ok("user", "create", "alice", "--generate", "--show-secret", *at)
    ok("policy", "set", "alice", "Topic:orders", "--actions", "Pub", "--from", "10.0.0.0/8", *at)
    ok("policy", "set", "alice", "Group:g", "--actions", "Sub", *at)
    (told,) = as_json("explain", "alice", "Pub", "Topic:orders", "--from", "10.1.2.3", *at)
    assert told["allowed"]
    assert [rule["decides"] for rule in told["rules"]] == [True, False]
    shown = ok("explain", "alice", "pub", "topic:orders", "--from", "192.168.0.1", *at)
    assert shown.startswith("DENIED: alice, Pub on Topic:orders from 192.168.0.1, at ")
    assert "it does not cover 192.168.0.1" in shown
    # Retries belong to their group, as at the broker.
    (told,) = as_json("explain", "alice", "Sub", "Topic:%RETRY%g", *at)
    assert (told["allowed"], told["resource"]) == (True, "Group:g")
    assert as_json("explain", "admin", "Update", "Cluster:c", *at)[0]["why"].startswith(
        "admin is a Super user"
    )
    assert "Did you mean alice?" in error("explain", "alicia", "Pub", "Topic:t", *at)
    assert "matches many resources" in error("explain", "alice", "Pub", "Topic:*", *at)
    assert "All is valid only in rules" in error("explain", "alice", "All", "Topic:t", *at)
    assert "one address" in error("explain", "alice", "Pub", "Topic:t", "--from", "10.0.0.0/8", *at)


def test_one_place_at_a_time(file: Path) -> None:
    assert "one place" in error("user", "list", "--file", str(file), "-b", "127.0.0.1:10911")


PLAIN = """
globalWhiteRemoteAddresses: [10.10.103.*]
accounts:
  - accessKey: RocketMQ
    secretKey: 12345678
    defaultTopicPerm: DENY
    defaultGroupPerm: SUB
    topicPerms: [topicA=DENY, topicB=PUB|SUB]
  - accessKey: rocketmq2
    secretKey: "0012345678"
    whiteRemoteAddress: 192.168.1.*
    admin: true
"""


def test_migrate(tmp_path: Path, file: Path) -> None:
    source = tmp_path / "conf" / "plain_acl.yml"
    source.parent.mkdir()
    source.write_text(PLAIN)
    before = file.read_bytes()
    at = ("--file", str(file))
    told = as_json("migrate", str(source), "--dry-run", *at)
    assert told["users"] == [
        {"username": "RocketMQ", "userType": "Normal", "rules": 4, "made": True},
        {"username": "rocketmq2", "userType": "Super", "rules": 2, "made": True},
    ]
    assert file.read_bytes() == before
    code, out, errors = run("migrate", str(source.parent), *at)
    assert code == 0
    assert "12345678" not in out + errors
    assert [line.split(":")[1] for line in errors.splitlines()] == [" not converted"] * 2
    assert "10.10.103.*" in errors
    users = book(file).users
    assert list(users) == ["admin", "inner", "RocketMQ", "rocketmq2"]
    assert users["rocketmq2"].password == "0012345678"
    assert as_json("explain", "RocketMQ", "Pub", "Topic:topicB", *at)[0]["allowed"]
    assert not as_json("explain", "RocketMQ", "Pub", "Topic:topicA", *at)[0]["allowed"]
    # Once more: who is there stays as it is.
    ok("user", "update", "RocketMQ", "--disable", *at)
    assert [one["made"] for one in as_json("migrate", str(source), *at)["users"]] == [False, False]
    assert not book(file).users["RocketMQ"].is_enabled
    made = tmp_path / "new.json"
    ok("migrate", str(source), "--file", str(made))
    assert mode(made) == 0o600
    odd = tmp_path / "odd.yml"
    odd.write_text('accounts:\n- accessKey: "orders*"\n  secretKey: "12345678"\n')
    told = as_json("migrate", str(odd), *at)
    assert told["users"] == []
    assert "another accessKey" in told["leftOver"][0]
    assert "these have none" in error("migrate", str(tmp_path / "made"), *at)
    assert "No such file" in error("migrate", str(tmp_path / "missing.yml"), *at)


async def test_a_change_that_did_not_reach_all_places_says_which_it_reached(
    file: Path, tmp_path: Path
) -> None:
    here, gone = FileAccess(file), FileAccess(tmp_path / "gone.json")
    user = User(username="alice", password="p")
    with pytest.raises(NotEverywhere, match=f"changed at {file}, but not at {gone.name}: .*access init"):
        await change_all([here, gone], lambda place: place.create_user(user))
    with pytest.raises(OptionError):  # nothing was done anywhere
        await change_all([gone, here], lambda place: place.create_user(user))
    assert list(await read_all([gone, here], lambda place: place.user("alice"))) == [str(file)]
