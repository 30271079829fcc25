"""What cannot succeed is told before Spark is started: in a moment, without a JVM, and nothing is made."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from kerolox.cli.main import app
from kerolox.client.messages import Message, Receipt
from kerolox.testing.threads import BrokerThread
from tests.pipeline.archiving import archive
from tests.pipeline.audit_stores import AuditStore

Send = Callable[[Sequence[Message]], list[Receipt]]
NOBODY = "127.0.0.1:1"


class Started(BaseException):
    """Spark would have been started. Nothing that commands catch."""


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Run a command that must fail; what it says."""

    def start(*_: object, **__: object) -> None:
        raise Started

    def sleep(seconds: float) -> None:
        raise AssertionError(f"it waits {seconds} s to try again")

    monkeypatch.setattr("kerolox.spark.session.session", start)
    monkeypatch.setattr("kerolox.spark.session.stop", lambda: None)
    monkeypatch.setattr(
        "kerolox.client.sockets.socket_cluster.time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep)
    )

    def run(*words: object) -> str:
        done = CliRunner().invoke(app, ["pipeline", *map(str, words)])
        assert isinstance(done.exception, SystemExit), (words, done.exception)
        assert done.exit_code in (1, 2)
        assert len(done.output.splitlines()) == 1, done.output
        return done.output

    return run


@pytest.fixture
def starts(refused: Callable[..., str]) -> Callable[..., None]:
    """Run a command that is right, as far as can be seen: Spark is wanted."""

    def run(*words: object) -> None:
        with pytest.raises(Started):
            CliRunner().invoke(app, ["pipeline", *map(str, words)])

    return run


def test_archives(
    refused: Callable[..., str], starts: Callable[..., None], broker: BrokerThread, topic: str, send: Send,
    tmp_path: Path,
) -> None:  # fmt: skip
    send([Message(topic, b"1")])
    at, to = ("-n", broker.nameserver_address), tmp_path / "archive"
    assert "no-such-topic" in refused("archive", *at, "--topic", "no-such-topic", "--to", to)
    assert NOBODY in refused("archive", "-n", NOBODY, "--topic", topic, "--to", to)
    assert os.listdir(tmp_path) == []
    file = tmp_path / "file"
    file.write_text("precious")
    for place in (file, file / "below"):
        assert "folder" in refused("archive", *at, "--topic", topic, "--to", place)
    other = tmp_path / "other"
    other.mkdir()
    (other / "precious").touch()
    assert "an archive, or a folder" in refused("archive", *at, "--topic", topic, "--to", other)
    offsets = f'startingOffsets={{"{topic}": {{"nobody": {{"0": 3}}}}}}'
    told = refused("archive", *at, "--topic", topic, "--to", to, "--option", offsets)
    assert "nobody" in told
    starts("archive", *at, "--topic", topic, "--to", to)


def test_an_archive_another_run_writes_to(
    refused: Callable[..., str], broker: BrokerThread, topic: str, send: Send, tmp_path: Path
) -> None:
    send([Message(topic, b"1")])
    archive(tmp_path, broker.nameserver_address, topic)
    at = ("-n", broker.nameserver_address, "--topic", topic, "--to", tmp_path)
    assert "map, as when this archive was created" in refused("archive", *at, "--properties", "none")
    assert "no --delta" in refused("archive", *at, "--delta")


def test_replays(
    refused: Callable[..., str], starts: Callable[..., None], broker: BrokerThread,
    new_topic: Callable[..., str], send: Send, tmp_path: Path,
) -> None:  # fmt: skip
    topic, target = new_topic(), new_topic()
    send([Message(topic, b"1")])
    source = tmp_path / "archive"
    archive(source, broker.nameserver_address, topic)
    at = ("-n", broker.nameserver_address, "--state", tmp_path / "state")
    replay = ("replay", source, *at)
    assert "no-such-topic" in refused(*replay, "--to-topic", "no-such-topic")
    assert "no-such-topic" in refused(*replay, "--topic-map", f"{topic}=no-such-topic")
    assert "--topic" in refused(*replay, "--topic", "never-archived", "--to-topic", target)
    assert NOBODY in refused("replay", source, "-n", NOBODY, "--to-topic", target, "--dry-run")
    assert "SOURCE" in refused("replay", tmp_path / "nothing", *at)
    (tmp_path / "empty").mkdir()
    assert "SOURCE" in refused("replay", tmp_path / "empty", *at)
    assert "--since" in refused(*replay, "--since", "yesterdayish")
    for more in ((), ("--dry-run",)):
        told = refused(*replay, "--to-topic", target, "--since", "15m", "--until", "30m", *more)
        assert "--until = '30m': expected a time later than --since, 15m" in told
    assert "--id" in refused(*replay, "--id", "../up")
    assert "spark://HOST" in refused(*replay, "--master", "lokal")
    starts(*replay, "--to-topic", target, "--since", "15m")
    store = AuditStore(tmp_path / "store")
    store.fill(10)
    store.write()
    told = refused("replay", store.root, *at, "--topic", "ordres", "--to-topic", target)
    assert "orders" in told
    starts("replay", store.root, *at, "--topic", "orders", "--to-topic", target)


def test_audits(refused: Callable[..., str], starts: Callable[..., None], tmp_path: Path) -> None:
    store = AuditStore(tmp_path / "store")
    store.fill(10)
    store.write()
    to = ("--to", tmp_path / "report")
    assert "commit log" in refused("audit", store.root / "consumequeue", *to)
    assert "'ordres'" in refused("audit", store.root, *to, "--topic", "ordres")
    assert "--since" in refused("audit", store.root, *to, "--since", "yesterdayish")
    assert "--until" in refused("audit", store.root, *to, "--since", "15m", "--until", "30m")
    assert "spark://HOST" in refused("audit", store.root, *to, "--master", "lokal")
    file = tmp_path / "file"
    file.touch()
    assert "--to" in refused("audit", store.root, "--to", file / "report")
    starts("audit", store.root, *to, "--topic", "orders", "--since", "15m")
    assert sorted(os.listdir(tmp_path)) == ["file", "store"]


def test_an_iceberg_archive_that_cannot_be(
    refused: Callable[..., str], broker: BrokerThread, topic: str, tmp_path: Path
) -> None:
    to = ("archive", "-t", topic, "-n", broker.nameserver_address)
    table = ("--iceberg", "lake.messages")
    assert "an address, or --iceberg NAMESPACE.TABLE" in refused(*to)
    assert "either --to or --iceberg" in refused(*to, *table, "--to", tmp_path)
    assert "no --delta" in refused(*to, *table, "--delta")
    assert "sqlite:///FILE, postgresql://HOST/DB or http" in refused(
        *to, *table, "--catalog-uri", "mysql://h/d"
    )
    assert "either --catalog or --catalog-uri" in refused(
        *to, *table, "--catalog-uri", "http://h", "--catalog", "c"
    )
    assert "~/.pyiceberg.yaml" in refused(*to, *table, "--catalog", "nobody-has-such-a-catalog")
    uri = f"sqlite:///{tmp_path}/catalog.db"
    assert "NAMESPACE.TABLE" in refused(*to, "--iceberg", "messages", "--catalog-uri", uri)
    assert "cannot be opened" in refused(*to, *table, "--catalog-uri", "http://127.0.0.1:1")
    assert "--iceberg NAMESPACE.TABLE when" in refused(*to, "--to", tmp_path, "--warehouse", tmp_path)
    no_warehouse = refused(*to, *table, "--catalog-uri", uri)
    assert f"lake.messages in {uri} cannot be created" in no_warehouse
