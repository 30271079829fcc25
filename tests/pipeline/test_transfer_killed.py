"""``split`` and ``merge`` killed: the same command ends what was begun, and nobody opens half a store."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kerolox.cli.main import app
from kerolox.errors import KeroloxError
from kerolox.pipeline.transfer import transfer as made_by
from kerolox.store.message_store import MessageStore
from kerolox.store.offline.half_made import HalfMade
from kerolox.store.offline.verify import verify
from tests.rig.waiting import wait_until

from .rebuild_stores import content, layout_of
from .step_kills import first_of
from .test_transfer import make_store, options_of, read_all
from .transfer_killing import InTurn, request

ROOT = Path(__file__).parents[2]
COUNT = 240


class Story:
    """Sources, what a run makes of them that is not killed, and its steps."""

    def __init__(self, folder: Path, topics: list[str]) -> None:
        self.roots = [folder / "a"] if topics else [folder / "a", folder / "b"]
        for number, root in enumerate(self.roots):
            make_store(root, COUNT, late_ms=500 * number, first_offset=120 * (1 - number))
        self.topics = topics
        self.to = folder / "to"
        self.before = [self.state_of(root) for root in self.roots]
        (self.steps,) = map(json.loads, self.run([]).splitlines())
        self.whole = made_of(Path(f"{self.to}-0"))

    def run(self, numbers: list[int]) -> str:
        told = [json.dumps([str(root) for root in self.roots]), json.dumps(self.topics)]
        command = [sys.executable, "-m", "tests.pipeline.transfer_killing", *told]
        done = subprocess.run(
            [*command, str(self.to), json.dumps(numbers)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=250,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    @staticmethod
    def state_of(root: Path) -> dict[str, tuple[bytes, int]]:
        return {
            str(path): (path.read_bytes(), path.stat().st_mtime_ns)
            for path in sorted(root.rglob("*"))
            if path.is_file()
        }

    def goes_on(self, number: int) -> None:
        """A run was killed before a step: look at what it left, and give the command again."""
        to, step = Path(f"{self.to}-{number}"), f"step {number}, {self.steps[number - 1]}"
        assert [self.state_of(root) for root in self.roots] == self.before, step
        if (to / "_work" / "plan.json").exists() and not (to / "_work" / "finished.json").exists():
            refused(to)
            with pytest.raises(KeroloxError, match=r"topics was|stores was"):  # by another command
                made_by.transfer(InTurn(), request(self.roots[:1], to, ["payments"]))
        else:
            assert not (to / "commitlog").exists() or (to / "_work" / "finished.json").exists(), step
        made = made_by.transfer(InTurn(), request(self.roots, to, self.topics))
        assert made_of(to) == self.whole, step
        assert made.messages == COUNT // 3 if self.topics else made.messages == 2 * COUNT // 3 * 2
        left = {path.name for path in (to / "_work").iterdir()}
        assert left == {"plan.json", "finished.json", "lock"}, step
        assert [self.state_of(root) for root in self.roots] == self.before, step


def made_of(to: Path) -> dict[str, bytes]:
    """All of a store, but for the times at which its tables were written."""
    return {
        name: re.sub(rb'"(timestamp|keroloxCrc32)":\s*\d+', b"", data)
        for name, data in content(to).items()
        if not name.startswith("_work/")
    }


def refused(to: Path) -> None:
    """Neither a broker nor a command opens it, and nothing changes."""

    async def opened() -> None:
        async with MessageStore(options_of(to, small=True)):
            pass

    before = content(to)
    with pytest.raises(HalfMade, match=rf"not complete.*Run that command again with --to {to}"):
        asyncio.run(opened())
    with pytest.raises(HalfMade):
        layout_of(to)
    assert content(to) == before


def test_a_half_made_store_is_refused_and_ended_by_the_same_command(tmp_path: Path) -> None:
    story = Story(tmp_path, ["orders"])
    number = first_of(story.steps, "os.rename _work/store/commitlog")  # all is made, nearly all in its place
    story.run([number])
    to = Path(f"{story.to}-{number}")
    assert {path.name for path in to.iterdir()} >= {"_work", "config", "consumequeue", "index", "checkpoint"}
    for words in (["store", "verify"], ["store", "repair"]):
        done = CliRunner().invoke(app, [*words, str(to)])
        assert done.exit_code
        assert "is not complete" in done.output
    before = content(to)
    command = [sys.executable, "-m", "kerolox", "broker", "--listen", "127.0.0.1:0", "--store", str(to)]
    broker = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert broker.returncode == 1
    assert "is not complete" in broker.stderr
    assert content(to) == before
    story.goes_on(number)
    assert verify(layout_of(to)).clean
    (zero, one), found = read_all(to, [("orders", 0), ("orders", 1)], ["a-0", "a-237"])
    assert [each.queue_offset for each in (*zero, *one)] == 2 * [*range(120, 160)]
    assert found == ["a 0", "a 237"]


@pytest.mark.long
@pytest.mark.parametrize("topics", [["orders"], []], ids=["split", "merge"])
def test_killed_at_every_step(tmp_path: Path, topics: list[str]) -> None:
    story = Story(tmp_path, topics)
    numbers = list(range(1, len(story.steps) + 1))
    story.run(numbers)
    for number in numbers:
        story.goes_on(number)


def test_what_a_broker_has_made_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    """Apache's broker does not ask whether the store is half made."""
    story = Story(tmp_path, ["orders"])
    number = first_of(story.steps, "os.rename _work/store/commitlog")
    story.run([number])
    to = Path(f"{story.to}-{number}")
    (to / "commitlog").mkdir()
    with pytest.raises(KeroloxError, match=r"commitlog exists, and was not made.*Did a broker start"):
        made_by.transfer(InTurn(), request(story.roots, to, ["orders"]))
    (to / "commitlog").rmdir()
    story.goes_on(number)


def begun(to: Path, note: str, run: subprocess.Popen[bytes]) -> bool:
    return any((to / "_work").glob(note)) or run.poll() is not None


@pytest.mark.long
def test_the_command_is_killed_with_all_its_processes(tmp_path: Path) -> None:
    make_store(tmp_path / "a", 30_000)
    to = tmp_path / "split"
    command = [sys.executable, "-m", "kerolox", "pipeline", "split", str(tmp_path / "a"), "--to", str(to)]
    command += ["--topic", "orders", "--master", "local[2]", "--json"]
    config = tmp_path / "broker.conf"
    config.write_text(f"mappedFileSizeCommitLog={1 << 16}\n")
    command += ["--config-file", str(config)]
    for note in ("part-*.json", "written-*.done", "queues/_work/*.piece"):
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        ) as run:
            wait_until(partial(begun, to, note, run), partial(str, note), 120)
            os.killpg(run.pid, signal.SIGKILL)
        assert run.returncode == -signal.SIGKILL
        done = CliRunner().invoke(app, ["store", "verify", str(to)])
        assert done.exit_code
        assert "is not complete" in done.output
    ended = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["messages"] == 10_000
    done = CliRunner().invoke(app, ["store", "verify", str(to), "--config-file", str(config)])
    assert done.exit_code == 0, done.output
