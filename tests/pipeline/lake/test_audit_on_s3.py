"""Audits of stores that were copied to an object store, and reports that are put into one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from kerolox.cli.main import app
from kerolox.errors import KeroloxError, OptionError
from kerolox.own_folder import own_folder
from kerolox.pipeline.audit.audit import audit, document
from kerolox.pipeline.audit.plan import plan_stores
from kerolox.pipeline.audit.report_place import FORM, REPORT, UNFINISHED, place_of
from kerolox.pipeline.lake.remote_store import RemoteStore
from kerolox.pipeline.lake.storage import Storage
from kerolox.pipeline.runner import OnSpark
from kerolox.store.queue.entry import SIMPLE
from tests.pipeline.audit_stores import HALF, AuditStore
from tests.pipeline.auditing import Examined
from tests.rig.s3_server import SECRET, S3Server
from tests.spark.store_maker import overwrite

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def damaged(root: Path) -> AuditStore:
    """A store with most kinds of fault: a missing file, damage in the log, a body, entries, gaps."""
    store = AuditStore(root, file_bytes=1 << 14)
    store.fill(400)
    store.add("orders", unique_key=f"{20:032X}")
    # Its broker is done with it: Spark's SQL engine, which looks for open ones, takes seconds to start.
    store.add(HALF, REAL_TOPIC="orders", PGROUP="pay")
    (root / "config").mkdir(parents=True)
    offsets = {"offsetTable": {f"{HALF}@CID_RMQ_SYS_TRANS": {"0": 1}}}
    (root / "config" / "consumerOffset.json").write_text(json.dumps(offsets))
    store.queues["orders", 0] += SIMPLE.blank * 2
    store.add("orders")
    del store.queues["orders", 1][-60:]
    store.write()
    for number, change in ((50, b"!"), (120, b"\xff" * 300)):
        path, at = store.where(store.messages[number].physical_offset)
        overwrite(path, at + (90 if number == 50 else 0), change)
    overwrite(store.queue_file("orders", 1), 140, SIMPLE.pack(4711, 100, 5))
    (root / "commitlog" / f"{2 << 14:020d}").unlink()
    # As brokers have it: the last file is as long as all others.
    last = max((root / "commitlog").iterdir())
    overwrite(last, (1 << 14) - 1, b"\0")
    return store


def copied(root: Path, to: Storage) -> Storage:
    for path in root.rglob("*"):
        if path.is_file():
            to.put(path.relative_to(root).as_posix(), path.read_bytes())
    return to


def told(text: Any, place: object) -> Any:
    """What was said of a store, whichever place it lies at."""
    return json.loads(json.dumps(text, default=str).replace(str(place), "STORE"))


@pytest.fixture
def store(tmp_path: Path) -> AuditStore:
    return damaged(tmp_path / "broker-a" / "store")


def test_findings_are_those_of_the_same_store_on_disk(
    s3: S3Server, store: AuditStore, tmp_path: Path
) -> None:
    there = copied(store.root, s3.storage("brokers/broker-a/store"))
    kept = there.files()
    here = Examined(store.root, tmp_path / "1", span_bytes=1 << 13)
    found = Examined(there, tmp_path / "2", span_bytes=1 << 13)
    wanted = told(here.findings().rows, store.root)
    assert {name for name, rows in wanted.items() if rows} >= {
        "damaged_log", "body_checksum", "wrong_queue_entries", "missing_queue_entries", "queue_gaps"
    }  # fmt: skip
    assert told(found.findings().rows, there) == wanted
    assert (found.total("halves"), found.store.half_progress) == (1, 1)
    for name in ("volume", "latency", "sizes", "runs", "keys"):
        assert sorted(map(str, found.table(name))) == sorted(map(str, here.table(name)))
    assert there.files() == kept  # nothing was written or deleted


@pytest.mark.parametrize("number", [0, -1])
def test_a_file_that_goes_missing_meanwhile_is_a_problem(
    number: int, s3: S3Server, store: AuditStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = copied(store.root, s3.storage())
    plans = plan_stores([there])
    piece = plans[0].log.pieces[number]
    there.delete([piece.path.removeprefix(f"{there}/")])
    monkeypatch.setattr("tests.pipeline.auditing.plan_stores", lambda _: plans)
    found = Examined(there, tmp_path / "work", span_bytes=1 << 30).findings().rows["damaged_log"]
    (row,) = (row for row in found if row["file"] == piece.path)
    assert row["what"].startswith("the file was deleted or truncated while it was read")


def test_a_whole_audit_and_its_report(
    spark: SparkSession, s3: S3Server, store: AuditStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = copied(store.root, s3.storage("brokers/broker-a/store"))
    to = s3.storage("reports/today")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    here = document(audit(OnSpark(spark.sparkContext), [store.root], tmp_path / "report"))
    monkeypatch.setattr("kerolox.spark.session.stop", lambda: None)
    options = tmp_path / "options.yaml"
    options.write_text(json.dumps(s3.options))
    command = ["pipeline", "audit", str(there), "--to", str(to), "--storage-options", str(options), "--json"]
    to.put(UNFINISHED, json.dumps({"form": FORM}).encode())  # of an audit that was killed while it wrote
    to.put("tables/of_an_older_release.parquet", b"")
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 1, done.output
    shown, kept = json.loads(done.stdout), json.loads(to.read("report.json"))
    assert shown.pop("report") == f"{to}/report.html"
    assert shown == kept
    for each in (here, kept):
        del each["seconds"]
    assert told(kept, there) == told(here, store.root)
    names = {file.path for file in to.files()}
    assert names == {
        path.relative_to(tmp_path / "report").as_posix()
        for path in (tmp_path / "report").rglob("*")
        if path.is_file()
    }
    assert not any(SECRET.encode() in to.read(name) for name in names)
    own = own_folder()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "broker-a",
        own.name,
        "options.yaml",
        "report",
    ]
    assert [path for path in own.rglob("*") if path.name != "audits"] == []


def test_a_report_takes_the_place_of_nothing_but_a_report(s3: S3Server, tmp_path: Path) -> None:
    to = s3.storage("reports/today")
    place = place_of(to)

    def put(words: str) -> None:
        made = tmp_path / words
        (made / "tables").mkdir(parents=True)
        for name in ("report.html", "tables/a.parquet", REPORT):
            (made / name).write_text(json.dumps({"form": FORM, "words": words}))
        place.check()
        place.put(made)

    put("first")
    put("second")
    assert [file.path for file in to.files()] == ["report.html", REPORT, "tables/a.parquet"]
    assert all(json.loads(to.read(file.path))["words"] == "second" for file in to.files())
    to.put(REPORT, b"precious")
    with pytest.raises(KeroloxError, match="is not an audit report"):
        place.check()
    assert len(to.files()) == 3
    with pytest.raises(OptionError, match="an existing bucket"):
        place_of(RemoteStore("s3://no-such-bucket/report", s3.options)).check()


def test_a_report_that_is_not_all_there_is_none(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = s3.storage("reports/today")
    to.put(REPORT, json.dumps({"form": FORM}).encode())
    (tmp_path / "table").touch()
    (tmp_path / REPORT).write_text(json.dumps({"form": FORM}))
    write = type(to).put

    def killed(storage: Storage, path: str, content: bytes) -> None:
        if path == REPORT:
            raise KeyboardInterrupt
        write(storage, path, content)  # type: ignore[arg-type]

    monkeypatch.setattr(RemoteStore, "put", killed)
    with pytest.raises(KeyboardInterrupt):
        place_of(to).put(tmp_path)
    monkeypatch.undo()
    assert not to.exists(REPORT)
    place_of(to).check()
    place_of(to).put(tmp_path)
    assert [file.path for file in to.files()] == [REPORT, "table"]


def test_what_is_no_store(s3: S3Server, tmp_path: Path) -> None:
    storage = s3.storage()
    for there in (storage, RemoteStore("s3://no-such-bucket/store", s3.options)):
        with pytest.raises(OptionError, match="nothing is there, or the bucket does not exist"):
            plan_stores([there])
    storage.put("file", b"")
    with pytest.raises(KeroloxError, match="has no commit log"):
        plan_stores([storage])
    wrong = RemoteStore("s3://bucket/store", {**s3.options, "endpoint_url": "http://127.0.0.1:1"})
    wrong.options["config_kwargs"] = {"retries": {"max_attempts": 0}}
    with pytest.raises(KeroloxError, match="could not be listed: Could not connect") as raised:
        plan_stores([wrong])
    assert SECRET not in str(raised.value)
