"""The store commands as people and programs use them."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kerolox.cli.main import app
from kerolox.protocol.properties import pack
from kerolox.store.message_store import MessageStore
from kerolox.testing.clock import ManualClock
from tests.store.dispatch.kit import options_for

runner = CliRunner()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A small store with its configuration file beside it."""
    path = tmp_path / "store"
    fill(path, 60)
    (tmp_path / "broker.conf").write_text(
        "mappedFileSizeCommitLog=4096\nmappedFileSizeConsumeQueue=1000\nmaxHashSlotNum=100\nmaxIndexNum=400\n"
    )
    return path


def fill(path: Path, count: int) -> list[tuple[int, int, int]]:
    async def work() -> list[tuple[int, int, int]]:
        async with MessageStore(options_for(path), clock=ManualClock()) as store:
            return [await store.put("T", 0, b"text %d" % n, pack({"KEYS": f"k{n}"})) for n in range(count)]

    return asyncio.run(work())


def run(*args: object, code: int = 0) -> str:
    result = runner.invoke(app, ["store", *map(str, args)])
    assert result.exit_code == code, result.output
    return result.stdout if not code else result.output


def conf(store: Path) -> list[object]:
    return ["-c", store.parent / "broker.conf"]


def test_a_store_is_found_below_the_folder_of_up(store: Path) -> None:
    assert json.loads(run("verify", store.parent, *conf(store), "--json"))["root"] == str(store)
    assert str(store) in run("inspect", store.parent)
    (store.parent / "other" / "commitlog").mkdir(parents=True)
    said = run("verify", store.parent, *conf(store), code=2)
    assert f"one of the 2 stores below it: {store.parent / 'other'}, {store}" in " ".join(said.split())
    assert "is clean" in run("verify", store, *conf(store))


def bad_body(store: Path, number: int) -> int:
    """Spoil the body of a message; its log offset."""
    rows = [json.loads(line) for line in run("inspect", store / f"commitlog/{0:020d}", "--json").splitlines()]
    offset = int(rows[number]["offset"])
    with open(store / f"commitlog/{0:020d}", "r+b") as file:
        file.seek(offset + 88)
        file.write(b"\xff\xff")
    return offset


def test_inspect_a_file_as_table_and_as_lines(store: Path) -> None:
    path = store / f"commitlog/{0:020d}"
    table = run("inspect", path, "--count", 3)
    assert "text 2" in table
    assert "text 3" not in table
    lines = run("inspect", path, "--count", 3, "--json").splitlines()
    assert [json.loads(line)["body"] for line in lines] == ["text 0", "text 1", "text 2"]
    offset = json.loads(lines[2])["offset"]
    (line,) = run("inspect", path, "--from", offset, "--count", 1, "--json").splitlines()
    assert json.loads(line)["body"] == "text 2"


def test_inspect_a_directory(store: Path) -> None:
    assert "stopped cleanly" in run("inspect", store)
    found = json.loads(run("inspect", store, "--json"))
    assert found["queues"][0]["max"] == 60


def test_inspect_ends_quietly_when_the_reader_has_enough(store: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "kerolox",
        "store",
        "inspect",
        str(store / f"commitlog/{0:020d}"),
        "--json",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        process.wait(30)


def test_inspect_says_what_it_cannot_tell(store: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    assert "--kind" in run("inspect", tmp_path / "notes.txt", code=1)
    assert "checkpoint" in run("inspect", tmp_path / "notes.txt", "--kind", "nonsense", code=1)
    assert "does not exist" in run("inspect", store / "commitlog/5", "--kind", "log", code=1)


def test_verify_exit_codes(store: Path, tmp_path: Path) -> None:
    assert "the store is clean" in run("verify", store, *conf(store))
    offset = bad_body(store, 7)
    out = run("verify", store, *conf(store), code=1)
    assert f"--skip {offset}" in out
    found: dict[str, Any] = json.loads(run("verify", store, *conf(store), "--json", code=1))
    assert found["clean"] is False
    assert found["findings"][0]["offset"] == offset
    assert found["recordsPerSecond"] > 0
    assert "is no directory" in run("verify", tmp_path / "nowhere", code=2)


def test_a_store_in_use_is_left_alone_unless_asked(store: Path) -> None:
    script = (
        "import sys; from kerolox.store.disk.files import Files;"
        "from kerolox.store.disk.lock import StoreLock;"
        "StoreLock(Files(), sys.argv[1]).take(); print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", script, str(store)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        out = run("verify", store, *conf(store), code=2)
        assert f"process {process.pid}" in out
        assert "--live" in out
        run("verify", store, *conf(store), "--live")
        assert "is locked by" in run("repair", store, *conf(store), "--yes", code=1)
        process.communicate()


def test_repair_asks_first(store: Path) -> None:
    assert "--yes" in run("repair", store, *conf(store), code=1)
    assert not list(store.glob("*.before-repair-*"))


def test_repair_after_damage_then_verify_is_clean(store: Path) -> None:
    offset = bad_body(store, 7)
    assert f"--skip {offset}" in run("repair", store, *conf(store), "--yes", code=1)
    out = run("repair", store, *conf(store), "--skip", offset, "--yes")
    assert "1 lost messages marked" in out
    assert "deleted topics" not in out  # the record that stands where the damage was is no message
    assert (store / f"damaged-{offset}.bin").exists()
    run("verify", store, *conf(store))
    again = json.loads(run("repair", store, *conf(store), "--skip", offset, "--yes", "--json"))
    assert again["skip"]["lostBytes"] == 0
    run("verify", store, *conf(store))


def test_repair_cut(store: Path) -> None:
    offset = bad_body(store, 7)
    done = json.loads(run("repair", store, *conf(store), "--cut", offset, "--yes", "--json"))
    assert done["cut"]["records"] == 52
    assert done["rebuilt"]["records"] == 7
    run("verify", store, *conf(store))
    assert "either --skip or --cut" in run("repair", store, "--cut", 1, "--skip", 1, code=1)


def test_repair_of_one_part(store: Path) -> None:
    run("repair", store, *conf(store), "--index", "--yes")
    assert not list(store.glob("consumequeue.*"))
    assert len(list(store.glob("index.before-repair-*"))) == 1


@pytest.mark.parametrize("command", ["inspect", "verify", "repair"])
def test_help_has_an_example(command: str) -> None:
    assert f"kerolox store {command}" in run(command, "--help")
