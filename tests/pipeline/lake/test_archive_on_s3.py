"""Archives in an object store: no rename, no lock, and every message once all the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kerolox.client.messages import Message, Queue, Receipt
from kerolox.errors import KeroloxError
from kerolox.pipeline.archive.files import Format
from kerolox.pipeline.archive.log import ParquetArchive
from kerolox.pipeline.archive.tasks import ArchiveTasks, check_shared
from kerolox.pipeline.lake import upkeep
from kerolox.pipeline.lake.delta_options import delta_options
from kerolox.pipeline.lake.remote_store import RemoteStore
from kerolox.pipeline.lake.storage import Storage, StorageError
from kerolox.pipeline.lake.upkeep import TaskResult
from kerolox.pipeline.runner import OnSpark
from kerolox.testing.threads import BrokerThread
from tests.pipeline.archiving import KINDS, STEPS, archive, bodies, here
from tests.pipeline.test_archive import expected, messages
from tests.rig.s3_server import SECRET, S3Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Send = Callable[[Sequence[Message]], list[Receipt]]
ROOT = Path(__file__).parents[3]
GATE = ("after the commit", "parquet")
KILLS = [
    pytest.param(step, kind, marks=() if (step, kind) == GATE else pytest.mark.long, id=f"{step}-{kind}")
    for step in STEPS
    for kind in KINDS
]


@pytest.mark.parametrize(("step", "kind"), KILLS)
def test_a_run_that_is_killed_goes_on(
    step: str, kind: str, s3: S3Server, broker: BrokerThread, new_topic: Callable[..., str], send: Send
) -> None:
    """SIGKILL at every step: no reader ever sees a message twice, and in the end all are there."""
    first, second, storage = new_topic(), new_topic(queues=2), s3.storage()
    sent = messages(first, 160) + messages(second, 60)
    send(sent)
    command = [sys.executable, "-m", "tests.pipeline.archiving", step, kind, storage.address]
    command += [json.dumps(storage.options), broker.nameserver_address, first, second]
    killed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250)
    assert killed.returncode == -9, killed.stderr
    moves = ("between the moves", "behind the moves") if kind == "parquet" else ()
    committed = step in ("after the commit", *moves, "before the report")
    if kind == "delta" or storage.files(f"topic={first}"):
        seen = bodies(storage, kind)
        assert max(seen.values(), default=1) == 1
        assert bool(seen) == committed
    again = archive(storage, broker.nameserver_address, first, second, kind=kind)
    assert again.rows == (220 - 150 if committed else 220)
    assert bodies(storage, kind) == expected(*sent)
    assert data_files(storage) == named(storage, kind)
    told = b"".join(storage.read(file.path) for file in storage.files() if file.path.endswith(".json"))
    assert SECRET.encode() not in told


def data_files(storage: Storage) -> set[str]:
    """All there are, readers' or not."""
    return {file.path for file in storage.files() if file.path.endswith(".parquet")}


def named(storage: Storage, kind: str) -> set[str]:
    """Those that a commit names."""
    if kind == "parquet":
        return set(ParquetArchive(storage).files())
    from deltalake import DeltaTable

    table = DeltaTable(storage.address, storage_options=delta_options(storage))
    return {uri.removeprefix(f"{storage.address}/") for uri in table.file_uris()}


def test_a_second_run_of_this_machine_is_refused(
    s3: S3Server, broker: BrokerThread, topic: str, send: Send
) -> None:
    send(messages(topic, 5))
    storage = s3.storage()

    def meanwhile(works: Sequence[Any]) -> list[TaskResult]:
        with pytest.raises(KeroloxError, match="another run archives to s3://"):
            archive(storage, broker.nameserver_address, topic)
        return here(works)

    assert archive(storage, broker.nameserver_address, topic, run=meanwhile).rows == 5


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("swept", [True, False])
def test_of_two_runs_the_later_goes_on(
    kind: str, swept: bool, s3: S3Server, elsewhere: Callable[[], None], broker: BrokerThread, topic: str,
    send: Send,
) -> None:  # fmt: skip
    """The first one stops: nothing of it is published, and nothing is missing or there twice."""
    sent = messages(topic, 40)
    send(sent)
    storage = s3.storage()
    elsewhere()

    def meanwhile(works: Sequence[Any]) -> list[TaskResult]:
        done = here(works) if swept else []  # the later one finds files, or not
        elsewhere()
        assert archive(storage, broker.nameserver_address, topic, kind=kind).rows == 40
        return done or here(works)

    with pytest.raises(KeroloxError, match=r"another run|is gone|rejected the commit"):
        archive(storage, broker.nameserver_address, topic, kind=kind, run=meanwhile)
    assert bodies(storage, kind) == expected(*sent)
    elsewhere()
    assert archive(storage, broker.nameserver_address, topic, kind=kind).rows == 0
    assert bodies(storage, kind) == expected(*sent)
    assert data_files(storage) == named(storage, kind)


def test_a_run_that_others_publish_for(s3: S3Server, elsewhere: Callable[[], None]) -> None:
    """A run hangs between its commit and the moves. Another one moves the files, and removes them later."""
    storage = s3.storage()
    slow = ParquetArchive(storage)
    slow.open(Format())
    files = here_files(slow)
    usual, slow._publish_last = slow._publish_last, lambda: None  # type: ignore[method-assign]
    made = slow.commit("g", {}, {Queue("t", "b", 0): 3}, files)
    elsewhere()
    quick = ParquetArchive(storage)
    quick.open(Format())
    assert (quick.number, quick.places) == (1, {Queue("t", "b", 0): 3})
    assert data_files(storage) == {file.path for file in files}
    quick.commit("g", {}, quick.places, [], removed=[file.path for file in files])
    assert slow._unpublished == made
    with pytest.raises(KeroloxError, match="another run has continued"):
        usual()
    assert data_files(storage) == set()
    quick.close()


def here_files(log: ParquetArchive) -> list[Any]:
    import pyarrow as pa

    from kerolox.pipeline.archive.files import HourFile, WriteTask
    from kerolox.pipeline.archive.folders import FolderPlace

    format = Format()
    work = WriteTask("t", (), None, log.storage, log.staging, log.stem(), format)  # type: ignore[arg-type]
    schema = format.schema()
    columns = {name: pa.nulls(3, schema.field(name).type) for name in schema.names}
    columns["queue_offset"] = pa.array(range(3), pa.int64())
    columns["store_timestamp"] = pa.array(range(3), pa.int64()).view(schema.field("store_timestamp").type)
    file = HourFile(work, schema, FolderPlace(0), 1)
    file.add(
        Queue("t", "b", 0), pa.RecordBatch.from_arrays([columns[n] for n in schema.names], schema=schema)
    )
    return [file.close()]


def test_a_commit_whose_fate_is_not_known(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store stops answering in the middle: files stay for the run that finds out."""
    storage = s3.storage()
    log = ParquetArchive(storage)
    log.open(Format())
    files = here_files(log)
    usual = RemoteStore.put_if_absent

    def lost(self: RemoteStore, path: str, content: bytes) -> None:
        usual(self, path, content)  # it arrives, but nobody hears of it
        raise StorageError("no answer", retriable=True)

    with monkeypatch.context() as patched:
        patched.setattr(RemoteStore, "put_if_absent", lost)
        with pytest.raises(KeroloxError, match=r"the outcome of commit .* is unknown") as raised:
            log.commit("g", {}, {Queue("t", "b", 0): 3}, files)
        assert not raised.value.retriable
    log.close()
    again = ParquetArchive(storage)
    again.open(Format())
    assert again.places == {Queue("t", "b", 0): 3}
    assert data_files(storage) == {file.path for file in files}
    again.close()


def test_files_are_published_before_the_next_commit(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store fails between a commit and the moves, and comes back: the same run goes on."""
    storage = s3.storage()
    log = ParquetArchive(storage)
    log.open(Format())

    def fails(*_: object) -> bool:
        raise StorageError("no answer", retriable=True)

    first = here_files(log)
    with monkeypatch.context() as patched:
        patched.setattr(RemoteStore, "_move", fails)
        with pytest.raises(StorageError):
            log.commit("g", {}, {Queue("t", "b", 0): 3}, first)
    second = here_files(log)
    log.commit("g", {}, {Queue("t", "b", 0): 6}, second)
    log.close()
    assert data_files(storage) == {file.path for file in first + second} == named(storage, "parquet")


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_small_files_are_joined(
    kind: str, s3: S3Server, broker: BrokerThread, topic: str, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, sent = s3.storage(), messages(topic, 40)
    for first in range(0, 40, 4):
        send(sent[first : first + 4])
        archive(storage, broker.nameserver_address, topic, kind=kind, join=False)
    monkeypatch.setattr(upkeep, "OVER_FOR_MS", -3_600_000)
    assert archive(storage, broker.nameserver_address, topic, kind=kind).files_joined >= 8
    assert bodies(storage, kind) == expected(*sent)
    if kind == "parquet":
        assert data_files(storage) == named(storage, kind)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_tasks_on_spark(
    kind: str, spark: SparkSession, s3: S3Server, broker: BrokerThread, topic: str, send: Send
) -> None:
    sent = messages(topic, 100)
    send(sent)
    how: dict[str, Any] = {
        "run": ArchiveTasks(OnSpark(spark.sparkContext)),
        "cores": 2,
        "format": Format(rows_max=30),
    }
    storage = s3.storage()
    told = archive(storage, broker.nameserver_address, topic, round_rows=60, kind=kind, **how)
    assert (told.rows, told.rounds) == (100, 2)
    assert bodies(storage, kind) == expected(*sent)
    check_shared(OnSpark(spark.sparkContext), storage)


@pytest.mark.long
@pytest.mark.xdist_group("spark")
def test_the_command_with_credentials_from_the_environment(
    s3: S3Server, broker: BrokerThread, topic: str, send: Send
) -> None:
    """Nothing secret on the command line: the driver, and tasks below it, have it from the environment."""
    sent, storage = messages(topic, 50), s3.storage()
    send(sent)
    command = [sys.executable, "-m", "kerolox", "pipeline", "archive", "-n", broker.nameserver_address]
    command += ["--topic", topic, "--to", storage.address, "--master", "local[2]", "--json"]
    done = subprocess.run(
        command, env={**os.environ, **s3.environment}, capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["to"], told["messages"], told["complete"]) == (storage.address, 50, True)
    assert bodies(storage, "parquet") == expected(*sent)
    assert SECRET not in done.stdout + done.stderr
