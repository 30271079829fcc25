"""``kerolox store resync`` as people and programs use it."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kerolox.broker.broker import Broker
from kerolox.broker.options import BrokerOptions
from kerolox.cli.main import app
from kerolox.store.message_store import MessageStore
from kerolox.store.options import StoreOptions
from kerolox.testing.broker import SMALL
from tests.cli.serving import Cluster, running_cluster
from tests.replication.kit import FILE, put

SIZES: dict[str, Any] = {**SMALL, "commit_log_file_bytes": FILE}
CONF = (
    f"mappedFileSizeCommitLog={FILE}\nmappedFileSizeConsumeQueue=120000\n"
    "maxHashSlotNum=5000\nmaxIndexNum=20000\n"
)


def stored(path: Path, *counts: int) -> None:
    """Messages are stored there, with a start for each count."""

    async def work(count: int) -> None:
        options = BrokerOptions(
            store_path=str(path / "store"), listen_port=0, bind_address="127.0.0.1", **SIZES
        )
        async with Broker(options) as broker:
            put(broker.store, count)

    for count in counts:
        asyncio.run(work(count))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A follower's store that has 20 messages its leader has not; the leader has 30 others."""
    stored(tmp_path / "leader", 200)
    shutil.copytree(tmp_path / "leader", tmp_path / "follower")
    stored(tmp_path / "leader", 30)
    stored(tmp_path / "follower", 20)
    (tmp_path / "broker.conf").write_text(CONF)
    return tmp_path / "follower/store"


@pytest.fixture
def leader(tmp_path: Path, store: Path) -> Iterator[Cluster]:
    with running_cluster(directory=tmp_path / "leader", **SIZES) as cluster:
        yield cluster


def run(*args: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["store", "resync", *map(str, args)])
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else " ".join(result.output.split())


def contents(store: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}


def test_it_says_what_it_finds_asks_and_does_it(store: Path, leader: Cluster) -> None:
    conf = ["-c", store.parent.parent / "broker.conf"]
    address = leader.running.address
    before = contents(store)
    told = run(store, "--leader", address, *conf, "--dry-run")
    assert "The two logs go on differently." in told
    assert "20 messages" in told
    assert "Nothing was changed: --dry-run." in told
    assert "--yes" in run(store, "--leader", address, *conf, code=1)  # nobody is there to ask
    assert contents(store) == before

    document = json.loads(run(store, "--leader", address, *conf, "--dry-run", "--json"))
    assert (document["found"], document["goes"]["messages"]) == ("diverged", 20)
    assert document["commonEnd"] == document["endsAt"] < document["ours"]["end"]
    assert document["commonStoredMs"] <= document["leadersNextStoredMs"] <= document["goes"]["firstStoredMs"]
    assert document["putAside"] is None

    # By the broker's name, too.
    name = leader.running.broker.options.broker_name
    found = json.loads(run(store, "-n", leader.address, "--broker", name, *conf, "--yes", "--json"))
    assert {**found, "putAside": None} == document
    aside = Path(found["putAside"])
    assert aside.parent == store
    assert json.loads((aside / "README.json").read_text())["leader"] == address
    told = run(store, "--leader", address, *conf)
    assert "Nothing to do. Start the broker" in told
    # What was put aside is read like any log.
    shown = CliRunner().invoke(app, ["store", "inspect", str(aside / f"commitlog/{0:020d}"), "--json"])
    rows = [json.loads(line) for line in shown.stdout.splitlines()]
    assert len([row for row in rows if row.get("topic") == "T" and row["offset"] >= found["endsAt"]]) == 20


def test_it_refuses_a_store_in_use(store: Path, leader: Cluster) -> None:
    own = leader.running.broker.store.root
    conf = ["-c", store.parent.parent / "broker.conf"]
    assert "is locked by" in run(own, "--leader", leader.running.address, *conf, "--yes", code=1)


def test_a_leader_without_its_log_is_not_obeyed(tmp_path: Path) -> None:
    stored(tmp_path / "follower", 50)
    (tmp_path / "broker.conf").write_text(CONF)
    arguments = [tmp_path / "follower", "-c", tmp_path / "broker.conf", "--yes"]
    with running_cluster(directory=tmp_path / "leader", **SIZES) as leader:
        told = run(*arguments, "--leader", leader.running.address, code=1)
        assert "this store has more than the leader" in told
        assert "Let this broker lead instead" in told
        assert not list((tmp_path / "follower/store").glob("resync-*"))
        assert "The log ends at 0." in run(*arguments, "--leader", leader.running.address, "--anyway")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "--leader"),
        (["--leader", "somewhere"], "host:port, as in 10.0.0.1:10911"),
        (["--leader", "127.0.0.1:1", "--broker", "b"], "either --leader, or -n and --broker"),
        (["-n", "127.0.0.1:9876"], "the leader's address, or -n and --broker"),
        (["--leader", "127.0.0.1:1"], "cannot connect to 127.0.0.1:1"),
    ],
)
def test_what_is_missing_or_wrong_is_named(store: Path, arguments: list[str], text: str) -> None:
    assert text in run(store, "-c", store.parent.parent / "broker.conf", *arguments, code=1)


def test_sizes_that_cannot_be_told_from_the_files_are_asked_for(tmp_path: Path) -> None:
    stored(tmp_path / "follower", 5)

    async def keys() -> None:
        async with MessageStore(StoreOptions(store_path=str(tmp_path / "follower/store"), **SIZES)) as store:
            await store.put("T", 0, b"x", b"KEYS\x01k\x02")

    asyncio.run(keys())
    assert "--config-file" in run(tmp_path / "follower", "--leader", "127.0.0.1:1", code=1)
