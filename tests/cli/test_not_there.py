"""What is looked up and is not there: a sentence that says so and exit code 1, for people and programs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kerolox.cli.main import app
from kerolox.testing.controller import running_controller
from tests.cli.serving import Cluster, running_cluster
from tests.cli.test_commands import EVERY, serving_nameserver
from tests.replication.kit import until


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running_cluster() as running, controller_beside(running):
        running.ok("topic", "create", "orders")
        running.ok("group", "create", "billing")
        running.ok("send", "orders", "one", "--key", "k1")
        running.ok("kv", "put", "SETTINGS", "colour", "red")
        yield running


@contextmanager
def controller_beside(cluster: Cluster) -> Iterator[None]:
    """A controller that knows no broker; commands find it by the environment."""
    serving = running_controller()
    controller = cluster.on_loop(serving.__aenter__)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("KEROLOX_CONTROLLER_ADDR", controller.address)
            cluster.on_loop(lambda: until(lambda: controller.is_leader))
            yield
    finally:
        cluster.on_loop(lambda: serving.__aexit__(None, None, None))


UNIQUE = "C0A8000100FF1234567800000000FFFF"
# What is looked up, and what the answer names.
LOOKUPS = [
    (("topic", "route", "oders"), "topic 'oders' does not exist"),
    (("topic", "stats", "oders"), "topic 'oders' does not exist"),
    (("topic", "update", "oders", "--perm", "4"), "topic oders does not exist at broker-a"),
    (("topic", "delete", "oders", "--yes"), "topic 'oders' does not exist"),
    (("topic", "list", "--cluster", "nowhere"), "cluster 'nowhere' does not exist"),
    (("group", "list", "--broker", "broker-x"), "no master found of broker 'broker-x'"),
    (("group", "lag", "biling"), "group 'biling' does not exist"),
    (("group", "lag", "billing", "--topic", "oders"), "topic 'oders' does not exist"),
    (("group", "members", "biling"), "group 'biling' does not exist"),
    (("group", "enable", "biling"), "group 'biling' does not exist"),
    (("group", "disable", "biling"), "group 'biling' does not exist"),
    (("group", "update", "biling", "--retries", "1"), "group 'biling' does not exist"),
    (("topic", "consumers", "oders"), "topic 'oders' does not exist"),
    (("message", "resume", "nonsense"), "an offset id"),
    (("broker", "status", "--broker", "broker-x"), "broker 'broker-x' is not registered"),
    (("broker", "settings", "noSuchSetting"), "has no setting 'noSuchSetting'"),
    (("broker", "drain", "broker-x"), "broker 'broker-x' is not registered"),
    (("broker", "undrain", "broker-x"), "broker 'broker-x' is not registered"),
    (("broker", "expire", "--broker", "broker-x"), "broker 'broker-x' is not registered"),
    (("controller", "settings", "noSuchSetting"), "has no setting 'noSuchSetting'"),
    (("group", "delete", "biling", "--yes"), "group 'biling' does not exist"),
    (("group", "reset", "biling", "orders", "--to", "latest", "--yes"), "group 'biling' does not exist"),
    (("group", "reset", "billing", "oders", "--to", "latest", "--yes"), "topic 'oders' does not exist"),
    (("message", "find", "oders"), "topic 'oders' does not exist"),
    (("message", "find", "orders", "--key", "k2"), "topic orders has no message that matches --key k2"),
    (("message", "find", "orders", "--to", "1h"), "topic orders has no message that matches --to 1h"),
    (
        ("message", "get", "nonsense"),
        "no message nonsense was found; tried: not an offset id, as unique key",
    ),
    (("message", "get", UNIQUE), "tried: not an offset id, as unique key in every topic"),
    (("message", "get", UNIQUE, "--topic", "orders"), "tried: as unique key in topic orders, as key there"),
    (("message", "get", UNIQUE, "--topic", "oders"), "topic 'oders' does not exist"),
    (("dlq", "show", "biling"), "group 'biling' does not exist"),
    (("dlq", "show", "billing", "--key", "k1"), "group billing has no dead letter that matches --key k1"),
    (("dlq", "resend", "biling", "--all"), "group 'biling' does not exist"),
    (("dlq", "resend", "billing", "--key", "k1"), "group billing has no dead letter that matches"),
    (("dlq", "export", "biling"), "group 'biling' does not exist"),
    (("tail", "oders", "--count", "1"), "topic 'oders' does not exist"),
    (("timer", "pending", "--broker", "broker-x"), "no master found of broker 'broker-x'"),
    (("timer", "pending", "--cluster", "nowhere"), "cluster 'nowhere' does not exist"),
    (("kv", "get", "SETTINGS", "color"), "namespace 'SETTINGS' at"),
    (("kv", "get", "NOWHERE", "colour"), "namespace 'NOWHERE' does not exist"),
    (("kv", "list", "NOWHERE"), "namespace 'NOWHERE' does not exist"),
    (("kv", "delete", "SETTINGS", "color"), "has no key 'color'"),
    (("store", "inspect", "nowhere"), "nowhere does not exist"),
    (("store", "verify", "nowhere"), "nowhere is not a directory"),
    (("store", "repair", "nowhere", "--yes"), "nowhere is not a directory"),
    (("store", "resync", "nowhere", "--leader", "127.0.0.1:1", "--yes"), "nowhere is not a directory"),
    (("broker", "followers", "--broker", "broker-x"), "broker 'broker-x' is not registered"),
    (("broker", "promote", "--broker", "broker-x"), "broker 'broker-x' is not registered"),
    (("controller", "status", "--broker", "broker-x"), "knows no broker 'broker-x'"),
    (("controller", "elect", "--broker", "broker-x", "--id", "1"), "knows no broker 'broker-x'"),
    (("controller", "clean", "--broker", "broker-x", "--yes"), "knows no broker 'broker-x'"),
    (("access", "user", "list", "zoe"), "no user name contains 'zoe'"),
    (("access", "user", "update", "zoe", "--disable"), "user 'zoe' does not exist"),
    (("access", "user", "delete", "zoe", "--yes"), "user 'zoe' does not exist"),
    (
        ("access", "user", "copy", "zoe", "--from", "nowhere.json", "--to", "x.json"),
        "an existing access.json",
    ),
    (("access", "user", "list", "--file", "nowhere.json"), "an existing access.json"),
    (("access", "policy", "list", "zoe"), "user 'zoe' does not exist"),
    (("access", "policy", "set", "zoe", "Topic:orders", "--actions", "Pub"), "user 'zoe' does not exist"),
    (("access", "policy", "delete", "zoe", "--all"), "user 'zoe' does not exist"),
    (
        ("access", "policy", "copy", "zoe", "--from", "nowhere.json", "--to", "x.json"),
        "an existing access.json",
    ),
    (("access", "explain", "zoe", "Pub", "Topic:orders"), "user 'zoe' does not exist"),
    (("access", "migrate", "nowhere.yml", "--file", "nowhere.json"), "No such file"),
    (("cluster", "status", "--data", "nowhere"), "no cluster exists in"),
    (("cluster", "down", "--data", "nowhere"), "no cluster is running in"),
]
IDS = [" ".join(words) for words, _ in LOOKUPS]
# Those that make, serve, or list whatever there is: they look nothing up by a name.
NO_LOOKUP = {
    *("up", "nameserver", "broker", "demo", "version", "send", "cluster list", "dlq list"),
    *("cluster up", "controller"),
    *("access init", "access user create"),
    *("topic create", "group create", "kv put", "bench send", "bench consume"),
}
OTHERS = {  # tests/pipeline
    *("pipeline archive", "pipeline replay", "pipeline audit", "pipeline compact", "pipeline expire"),
    *("pipeline rebuild", "pipeline split", "pipeline merge", "pipeline run", "pipeline check"),
}


def test_no_command_is_forgotten() -> None:
    every = {" ".join(words) for words in EVERY}
    tried = {
        next(name for count in (3, 2, 1) if (name := " ".join(words[:count])) in every)
        for words, _ in LOOKUPS
    }
    assert every == tried | NO_LOOKUP | OTHERS


@pytest.mark.parametrize(("words", "said"), LOOKUPS, ids=IDS)
def test_people_are_told(cluster: Cluster, words: tuple[str, ...], said: str) -> None:
    line = cluster.error(*words)
    assert said in line
    assert "NOT_EXIST" not in line
    assert "NOT_FOUND" not in line


@pytest.mark.parametrize(("words", "said"), LOOKUPS, ids=IDS)
def test_programs_are_told(cluster: Cluster, words: tuple[str, ...], said: str) -> None:
    out, errors = cluster.run(*words, "--json", fails=True)
    told = json.loads(errors)
    assert out == ""
    assert said in told["error"]
    assert told["retriable"] is False


def test_a_slip_is_told_from_a_stranger(cluster: Cluster) -> None:
    assert cluster.error("topic", "route", "oders").endswith("Did you mean orders?")
    assert cluster.error("group", "lag", "Biling").endswith("Did you mean billing?")
    assert cluster.error("kv", "get", "SETTINGS", "color").endswith("Did you mean colour?")
    assert "Did you mean" not in cluster.error("topic", "route", "something-else")


def test_name_servers_that_list_no_topics_only_spare_the_guess(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster.running.nameserver.options, "enable_all_topic_list", False)
    for words in (("topic", "route", "oders"), ("topic", "delete", "oders", "--yes")):
        assert (
            cluster.error(*words)
            == f"kerolox: topic 'oders' does not exist at name server {cluster.address}."
        )
    cluster.ok("topic", "create", "passing")
    assert cluster.ok("topic", "delete", "passing", "--yes") == "passing was deleted\n"


def test_what_is_there_and_empty_is_no_error(cluster: Cluster) -> None:
    cluster.ok("topic", "create", "quiet")
    assert cluster.ok("group", "lag", "billing").startswith("group billing has no progress yet")
    assert cluster.json("group", "lag", "billing")["queues"] == []
    assert cluster.ok("group", "members", "billing") == "no member of group billing is connected\n"
    assert cluster.json("group", "members", "billing")["members"] == []
    assert cluster.ok("dlq", "show", "billing") == "group billing has no dead letters\n"
    assert cluster.json("dlq", "show", "billing")["messages"] == []
    assert cluster.ok("dlq", "list") == "no group has dead letters\n"
    assert cluster.error("message", "find", "quiet") == "kerolox: topic quiet has no messages"


def test_a_name_server_without_brokers(tmp_path: Path) -> None:
    with serving_nameserver(tmp_path) as address:
        result = CliRunner().invoke(app, ["cluster", "list", "-n", address])
        assert (result.exit_code, result.stdout) == (0, f"no broker is registered at {address}\n")
        result = CliRunner().invoke(app, ["topic", "list", "-n", address])
        assert (result.exit_code, result.stdout.strip()) == (
            0,
            "no topics. Create one: kerolox topic create NAME",
        )
