"""Unclosed sockets and files fail a run, with the name of the test that opened them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

LEAKING = """
import asyncio
import gc
import socket

import pytest


class Cycle:
    def __init__(self, held):
        self.held, self.me = held, self


@pytest.fixture(scope="module")
def shared():
    Cycle(socket.socket())


def test_opens_a_socket():
    Cycle(socket.socket())


def test_opens_a_file(tmp_path):
    Cycle(open(tmp_path / "left", "w"))


async def test_opens_a_connection():
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    Cycle(await asyncio.open_connection(*server.sockets[0].getsockname()))
    server.close()


def test_uses_a_fixture(shared):
    pass


def test_collects_what_others_left():
    gc.collect()
"""
CLEAN = """
import socket


def test_closes_what_it_opens(tmp_path):
    socket.socket().close()
    (tmp_path / "closed").write_text("x")
"""


def run(folder: Path, *options: str) -> tuple[int, str]:
    """Run the tests of a folder with this project's plugin in a process of its own."""
    (folder / "conftest.py").write_text(
        "from tests.leaks import Leaks\n\n"
        "def pytest_configure(config):\n    leaks = Leaks()\n    config.pluginmanager.register(leaks)\n"
        "    leaks.start()\n"
    )
    (folder / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\nfilterwarnings = error\n")
    done = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-q", "-p", "no:unraisableexception", "-p", "no:cacheprovider",
            "-c", str(folder / "pytest.ini"), "--rootdir", str(folder), *options, str(folder),
        ],
        cwd=Path(__file__).parent.parent, capture_output=True, text=True, timeout=120,
        env={**os.environ, "KEROLOX_REQUIRE_CLOSED": "1"},
    )  # fmt: skip
    return done.returncode, done.stdout


@pytest.mark.parametrize("workers", [(), ("-n", "1")])
def test_the_opener_is_named_and_fails_the_run(tmp_path: Path, workers: tuple[str, ...]) -> None:
    (tmp_path / "test_leaking.py").write_text(LEAKING)
    code, output = run(tmp_path, *workers)
    assert code == pytest.ExitCode.TESTS_FAILED, output
    assert "5 passed" in output, "the tests themselves pass, also the one that ran during the collection"
    left = output[output.index("left open") :]
    for opener, what in (
        ("test_opens_a_socket", "socket.socket"),
        ("test_opens_a_file", "unclosed file"),
        ("test_opens_a_connection", "unclosed transport"),
        ("test_uses_a_fixture (fixture shared)", "socket.socket"),
    ):
        lines = [line for line in left.splitlines() if f"::{opener}: " in line]
        assert lines, left
        assert any(what in line for line in lines), left
    assert "test_collects_what_others_left" not in left


def test_a_run_that_closes_everything_passes(tmp_path: Path) -> None:
    (tmp_path / "test_clean.py").write_text(CLEAN)
    code, output = run(tmp_path)
    assert code == pytest.ExitCode.OK, output
    assert "left open" not in output
