"""Archives that are looked after: small files joined, old ones gone, on disk and on S3."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kerolox.cli.main import app
from kerolox.client.messages import Message, Receipt
from kerolox.errors import KeroloxError
from kerolox.pipeline.archive import upkeep
from kerolox.pipeline.archive.log import ParquetArchive
from kerolox.pipeline.lake.local_folder import LocalFolder
from kerolox.pipeline.lake.remote_store import RemoteStore
from kerolox.pipeline.lake.storage import Storage, StorageError
from kerolox.pipeline.lake.upkeep import TaskResult
from kerolox.testing.threads import BrokerThread
from tests.pipeline.archiving import KINDS, UPKEEP_STEPS, archive, bodies, here
from tests.pipeline.test_archive import expected, messages
from tests.rig.s3_server import S3Server

from .test_archive_on_s3 import data_files, named

Send = Callable[[Sequence[Message]], list[Receipt]]
ROOT = Path(__file__).parents[3]
EVERYTHING = -2 * 3_600_000  # this hour counts as over, and as old
runner = CliRunner()


@pytest.fixture(params=["disk", pytest.param("s3", marks=pytest.mark.long)])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "disk":
        return LocalFolder(tmp_path / "a")
    server: S3Server = request.getfixturevalue("s3")
    return server.storage()


def fill(storage: Storage, broker: BrokerThread, topic: str, send: Send, kind: str) -> list[Message]:
    sent = messages(topic, 12)
    for first in range(0, 12, 4):
        send(sent[first : first + 4])
        archive(storage, broker.nameserver_address, topic, kind=kind, join=False)
    return sent


@pytest.mark.parametrize("kind", KINDS)
def test_small_files_are_joined_on_demand(
    kind: str, storage: Storage, broker: BrokerThread, topic: str, send: Send
) -> None:
    sent = fill(storage, broker, topic, send, kind)
    assert upkeep.compact(storage, older_than_ms=300_000) == 0  # this hour is not over
    assert upkeep.compact(storage, older_than_ms=EVERYTHING) in (2, 3)  # the hour may have changed
    assert bodies(storage, kind) == expected(*sent)
    assert len(named(storage, kind)) in (1, 2)
    assert upkeep.compact(storage, older_than_ms=EVERYTHING) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_old_hours_go_and_are_not_archived_again(
    kind: str, storage: Storage, broker: BrokerThread, topic: str, send: Send
) -> None:
    fill(storage, broker, topic, send, kind)
    assert upkeep.expire(storage, keep_ms=3_600_000).files == 0
    done = upkeep.expire(storage, keep_ms=EVERYTHING)
    assert (done.files, done.rows) == (3, 12)
    assert named(storage, kind) == set()
    assert not [path for path in data_files(storage) if path.startswith("topic=")]
    if isinstance(storage, LocalFolder):
        assert list(storage.root.glob("topic=*")) == []
    assert archive(storage, broker.nameserver_address, topic, kind=kind).rows == 0
    more = messages(topic, 5, 12)
    send(more)
    assert archive(storage, broker.nameserver_address, topic, kind=kind).rows == 5
    assert bodies(storage, kind) == expected(*more)


def test_only_our_own_orphans_go(broker: BrokerThread, topic: str, send: Send, tmp_path: Path) -> None:
    storage = LocalFolder(tmp_path)
    sent = fill(storage, broker, topic, send, "parquet")
    storage.put("topic=x/date=2020-01-01/hour=00/0000000009-000-001.parquet", b"nothing names it")
    storage.put("topic=x/notes.parquet", b"somebody else's")
    done = upkeep.expire(storage, keep_ms=3_600_000)
    assert (done.files, done.orphans) == (0, 1)
    assert data_files(storage) == named(storage, "parquet") | {"topic=x/notes.parquet"}
    storage.delete(["topic=x/notes.parquet"])
    storage.prune(["topic=x"])
    assert bodies(storage) == expected(*sent)


def test_old_hours_go_while_archiving(broker: BrokerThread, topic: str, send: Send, tmp_path: Path) -> None:
    sent = messages(topic, 10)
    send(sent)
    assert archive(tmp_path, broker.nameserver_address, topic, expire_ms=3_600_000).files_expired == 0
    assert bodies(tmp_path) == expected(*sent)
    assert archive(tmp_path, broker.nameserver_address, topic, expire_ms=EVERYTHING).files_expired >= 1
    assert ParquetArchive(tmp_path).files() == {}
    assert archive(tmp_path, broker.nameserver_address, topic, expire_ms=EVERYTHING).rows == 0


def test_upkeep_that_fails_does_not_end_the_archive(
    broker: BrokerThread, topic: str, send: Send, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    def fails(*_: object) -> None:
        raise StorageError("no answer")

    sent = messages(topic, 5)
    send(sent)
    monkeypatch.setattr(ParquetArchive, "expire", fails)
    monkeypatch.setattr(ParquetArchive, "known", fails)
    assert archive(tmp_path, broker.nameserver_address, topic, expire_ms=3_600_000).rows == 5
    assert [record.message.split()[0] for record in caplog.records if record.levelname == "WARNING"] == [
        "old_hours_not_removed", "small_files_not_joined",
    ]  # fmt: skip
    assert bodies(tmp_path) == expected(*sent)


@pytest.mark.long
@pytest.mark.parametrize("work", ["compact", "expire"])
@pytest.mark.parametrize("step", UPKEEP_STEPS)
@pytest.mark.parametrize("kind", KINDS)
def test_upkeep_that_is_killed(
    kind: str, step: str, work: str, storage: Storage, broker: BrokerThread, topic: str, send: Send
) -> None:
    """SIGKILL at every step: no message is there twice, and the next run ends what was begun."""
    stays = (kind, work) == ("delta", "compact")  # old versions need the files for a week
    if stays and "deletes" in step:
        pytest.skip("nothing is deleted")
    sent = fill(storage, broker, topic, send, kind)
    options = json.dumps(storage.options if isinstance(storage, RemoteStore) else {})
    command = [sys.executable, "-m", "tests.pipeline.archiving", step, work, storage.address, options]
    killed = subprocess.run([*command, "", ""], cwd=ROOT, capture_output=True, text=True, timeout=250)
    assert killed.returncode == -9, killed.stderr
    if kind == "delta":
        assert named(storage, kind) <= data_files(storage)  # the table names nothing that is gone
    elif any(path.startswith("topic=") for path in data_files(storage)):
        assert max(bodies(storage, kind).values(), default=1) == 1
    if work == "compact":
        upkeep.compact(storage, older_than_ms=EVERYTHING)
        assert bodies(storage, kind) == expected(*sent)
        assert len(named(storage, kind)) in (1, 2)
    else:
        upkeep.expire(storage, keep_ms=EVERYTHING)
        assert named(storage, kind) == set()
    assert stays or data_files(storage) == named(storage, kind)
    assert archive(storage, broker.nameserver_address, topic, kind=kind).rows == 0


def test_the_commands(broker: BrokerThread, topic: str, send: Send, tmp_path: Path) -> None:
    fill(LocalFolder(tmp_path), broker, topic, send, "parquet")
    done = runner.invoke(app, ["pipeline", "compact", str(tmp_path), "--json"])
    assert (done.exit_code, json.loads(done.output)["filesJoined"]) == (0, 0)
    done = runner.invoke(app, ["pipeline", "expire", str(tmp_path), "--keep", "30d", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["files"] == 0
    for command, said in (
        (["compact", str(tmp_path / "nothing")], "found none"),
        (["expire", str(tmp_path), "--keep", "1m"], "1h or more"),
        (["expire", str(tmp_path), "--keep", "soon"], "--keep"),
    ):
        done = runner.invoke(app, ["pipeline", *command])
        assert (done.exit_code, said in done.output) == (1, True), done.output


@pytest.mark.long
@pytest.mark.parametrize("work", ["compact", "expire"])
@pytest.mark.parametrize("kind", KINDS)
def test_beside_a_run_on_another_machine(
    kind: str, work: str, s3: S3Server, elsewhere: Callable[[], None], broker: BrokerThread, topic: str,
    send: Send,
) -> None:  # fmt: skip
    """No lock is seen there. The run stops before its commit, and the next one has every message once."""
    storage = s3.storage()
    sent = fill(storage, broker, topic, send, kind)
    more = messages(topic, 8, 12)
    send(more)
    elsewhere()

    def meanwhile(works: Sequence[Any]) -> list[TaskResult]:
        done = here(works)
        elsewhere()
        if work == "compact":
            assert upkeep.compact(storage, older_than_ms=EVERYTHING) in (2, 3)
        else:
            assert upkeep.expire(storage, keep_ms=3_600_000).files == 0
        return done

    with pytest.raises(KeroloxError, match=r"another run|is gone|rejected the commit"):
        archive(storage, broker.nameserver_address, topic, kind=kind, run=meanwhile, join=False)
    assert bodies(storage, kind) == expected(*sent)
    elsewhere()
    assert archive(storage, broker.nameserver_address, topic, kind=kind, join=False).rows == 8
    assert bodies(storage, kind) == expected(*sent, *more)
    if (kind, work) != ("delta", "compact"):  # whose old versions stay for a week
        assert data_files(storage) == named(storage, kind)
