"""Queues and index made from the log by tasks: byte for byte those of the broker's own rebuild."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from kerolox.cli.main import app
from kerolox.errors import KeroloxError, OptionError
from kerolox.pipeline.rebuild import rebuild as many
from kerolox.pipeline.rebuild.job import OtherWork
from kerolox.store import rebuild as single
from kerolox.store.disk.files import Files
from kerolox.store.disk.lock import StoreLock
from kerolox.store.errors import StoreLocked
from kerolox.store.offline.layout import UNFINISHED, find_layout
from kerolox.store.offline.verify import verify
from tests.pipeline.rebuild_stores import FILE_BYTES, content, layout_of, mixed_log
from tests.spark.store_maker import StoreMaker, fill

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kerolox.pipeline.runner import OnSpark, Runner


def request(root: Path, to: Path, **changes: object) -> many.RebuildRequest:
    given = {"like": many.OURS, "part_bytes": 40_000, **changes}
    return many.RebuildRequest(layout_of(root), str(to), **given)  # type: ignore[arg-type]


def same_as_single(root: Path, to: Path) -> single.Rebuilt:
    """Let the broker's own rebuild do the same, and compare all bytes."""
    alone = single.rebuild(layout_of(root))
    assert content(to / "consumequeue") == content(root / "consumequeue")
    # Files of the index are named by the time they were made.
    assert list(content(to / "index").values()) == list(content(root / "index").values())
    return alone


@pytest.mark.parametrize(("seed", "part_bytes", "first_file"), [(1, 30_000, 0), (2, 1 << 20, 3)])
def test_byte_for_byte(runner: Runner, tmp_path: Path, seed: int, part_bytes: int, first_file: int) -> None:
    root, to = tmp_path / "store", tmp_path / "rebuilt"
    mixed_log(root, seed, 800 if first_file == 0 else 1200, first_file=first_file)
    made = many.rebuild(runner, request(root, to, part_bytes=part_bytes))
    alone = same_as_single(root, to)
    assert (made.records, made.queues, made.log_end) == (alone.records, alone.queues, alone.log_end)
    assert (made.holes, made.restarted, len(made.index_files)) == (
        alone.holes, alone.restarted, alone.index_files,
    )  # fmt: skip
    assert made.read_again == 0
    assert made.runner == "2 processes of this machine"
    assert made.whole


def test_spark_makes_the_same(on_spark: OnSpark, tmp_path: Path) -> None:
    root, to = tmp_path / "store", tmp_path / "rebuilt"
    mixed_log(root, 4, 800)
    made = many.rebuild(on_spark, request(root, to, part_bytes=30_000))
    assert made.records == same_as_single(root, to).records
    assert made.runner == "Spark local[2,2]"


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10, 22))
def test_many_logs(runner: Runner, tmp_path: Path, seed: int) -> None:
    root, to = tmp_path / "store", tmp_path / "rebuilt"
    mixed_log(root, seed, 3000, first_file=seed % 3)
    many.rebuild(runner, request(root, to, part_bytes=(1000, 5000, 30_000)[seed % 3]))
    same_as_single(root, to)


def test_damage_is_named_stepped_over_or_the_end(runner: Runner, tmp_path: Path) -> None:
    root = tmp_path / "store"
    maker = fill(StoreMaker(root, FILE_BYTES), 400)
    maker.queues.clear()
    root_path = maker.write()
    place = maker.messages[250].physical_offset
    path, at = maker.damage(place + 100, b"\xff" * 40)
    with pytest.raises(single.DamagedLog, match=f"{path} at byte {at - 100} \\(log offset {place}\\)"):
        many.rebuild(runner, request(root, tmp_path / "out"))
    # What was read is not read again: the choice is made on the same pieces.
    skipped = many.rebuild(runner, request(root, tmp_path / "out", on_damage=many.SKIP))
    assert (skipped.records, skipped.holes, len(skipped.damage)) == (399, 1, 1)
    stopped = many.rebuild(runner, request(root, tmp_path / "cut", on_damage=many.STOP))
    assert (stopped.records, stopped.entries, stopped.log_end) == (250, 250, place)
    assert root_path == str(root)


def test_a_body_that_looks_like_a_record(runner: Runner, tmp_path: Path) -> None:
    """A part that begins inside of a message is told so by the one before it."""
    root = tmp_path / "store"
    maker = StoreMaker(root, FILE_BYTES)
    maker.add("orders", b"x" * 30_000)  # two parts of a file are enough
    inner = StoreMaker(root, FILE_BYTES)
    inner.log += bytes(len(maker.log) + 88)  # where the body will lie
    inner.add("orders", b"not a message", queue_offset=7)
    maker.add("orders", bytes(inner.log[len(maker.log) + 88 :]))
    maker.add("orders", b"y" * 100)
    maker.queues.clear()
    maker.write()
    start = maker.messages[1].physical_offset
    made = many.rebuild(runner, request(root, tmp_path / "out", part_bytes=start + 40))
    assert (made.records, made.read_again) == (3, 1)
    same_as_single(root, tmp_path / "out")


def test_it_goes_on_where_it_was(on_spark: OnSpark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, to = tmp_path / "store", tmp_path / "rebuilt"
    mixed_log(root, 3, 500)
    asked = request(root, to)

    class Killed(Exception):
        pass

    def killed(*_: object) -> None:
        raise Killed

    monkeypatch.setattr(many._Rebuild, "_write_checkpoint", killed)
    with pytest.raises(Killed):
        many.rebuild(on_spark, asked)
    pieces = sorted((to / "_work").glob("*.piece"))
    pieces[0].unlink()  # one task had not finished
    next((to / "_work").glob("queues-1-*.done")).unlink()
    times = {path: path.stat().st_mtime_ns for path in pieces[1:]}
    monkeypatch.undo()
    with pytest.raises(OtherWork, match="topics was"):
        many.rebuild(on_spark, request(root, to, topics=("orders",)))
    with StoreLock(Files(), to / "_work"), pytest.raises(StoreLocked):
        many.rebuild(on_spark, asked)

    def unchanged(*_: object) -> None:
        assert all(path.stat().st_mtime_ns == time for path, time in times.items())

    monkeypatch.setattr(
        many.Job, "finish", lambda job, made: unchanged() or job.write_note("finished.json", made)
    )
    made = many.rebuild(on_spark, asked)
    monkeypatch.undo()
    assert many.rebuild(on_spark, asked) == made
    same_as_single(root, to)


def test_only_some_topics_or_a_part(runner: Runner, tmp_path: Path) -> None:
    root = tmp_path / "store"
    maker = fill(StoreMaker(root, FILE_BYTES), 300, ("orders", "payments"))
    maker.write()
    made = many.rebuild(runner, request(root, tmp_path / "out", topics=("orders",)))
    assert (made.entries, made.index_files, made.whole) == (150, [], False)
    assert sorted(path.name for path in (tmp_path / "out" / "consumequeue").iterdir()) == ["orders"]
    with pytest.raises(KeroloxError, match="no store has a topic 'other'"):
        many.check_request(request(root, tmp_path / "other", topics=("other",)))
    low, high = (maker.messages[number].physical_offset for number in (100, 200))
    made = many.rebuild(runner, request(root, tmp_path / "part", low=low, high=high))
    assert (made.records, made.log_begin, made.log_end, made.whole) == (100, low, high, False)
    with pytest.raises(KeroloxError, match="cannot replace all queues"):
        many.put_in_place(request(root, tmp_path / "part", low=low, high=high), made)
    with pytest.raises(OptionError, match="an offset of the log"):
        many.check_request(request(root, tmp_path / "other", low=1 << 40))


def test_a_command_puts_them_in_place(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kerolox.spark import session

    monkeypatch.setattr(session, "session", lambda *_, **__: spark)
    monkeypatch.setattr(session, "stop", lambda: None)
    root, to = tmp_path / "store", tmp_path / "rebuilt"
    fill(StoreMaker(root, FILE_BYTES, 300_000), 400).write()
    before = content(root / "consumequeue")
    shutil.rmtree(root / "consumequeue" / "orders" / "1")
    words = ["pipeline", "rebuild", str(root), "--to", str(to), "--like", "kerolox"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "400 records" in done.output
    assert f"mv {to}/consumequeue" in done.output.replace("\n", "")
    with StoreLock(Files(), root):
        done = CliRunner().invoke(app, [*words, "--in-place"])
        assert done.exit_code == 1
        assert "lock" in done.output
    done = CliRunner().invoke(app, [*words, "--in-place", "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert (told["in_place"], told["entries"], len(told["put_aside"])) == (True, 400, 1)
    after = content(root / "consumequeue")
    assert sorted(after) == sorted(before)
    assert verify(find_layout(root)).clean


@pytest.mark.parametrize("name", ["consumequeue", "index"])
@pytest.mark.parametrize("swapped", [False, True])
def test_putting_in_place_goes_on(
    runner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, swapped: bool
) -> None:
    """Killed when one of the two was moved, or swapped as well: the next run does the rest, and no more."""
    root, to = tmp_path / "store", tmp_path / "rebuilt"
    fill(StoreMaker(root, FILE_BYTES, 300_000), 200).write()
    asked = request(root, to)
    made = many.rebuild(runner, asked)
    wanted = content(to / "consumequeue"), content(to / "index")

    class Killed(Exception):
        pass

    def rename(files: Files, source: str, target: str) -> None:
        os.rename(source, target)
        if target == str(root / name) + ("" if swapped else UNFINISHED):
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(Files, "rename", rename)
        with pytest.raises(Killed):
            many.put_in_place(asked, made)
    assert many.put_in_place(asked, made).in_place
    assert (content(root / "consumequeue"), content(root / "index")) == wanted
    assert not list(root.glob(f"*{UNFINISHED}"))
