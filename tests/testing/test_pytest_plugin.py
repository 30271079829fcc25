"""The fixtures that users get: tests written as theirs, run by a pytest of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BLOCKING = """
import pytest
from kerolox.blocking import Message, Producer, PullConsumer, PullOptions


def test_blocking(kerolox_broker):
    with Producer(kerolox_broker.nameserver_address, group="shop") as producer:
        producer.send(Message("orders", b"hello"))
    with PullConsumer(
        kerolox_broker.nameserver_address, group="g", topics=["orders"], options=PullOptions(start="first")
    ) as consumer:
        assert [message.body for message in consumer.poll(10)] == [b"hello"]


def test_one_broker_a_test(kerolox_nameserver, kerolox_broker):
    assert kerolox_nameserver == kerolox_broker.nameserver_address
    with Producer(kerolox_nameserver, group="shop") as producer:
        assert producer.send(Message("orders", b"new")).queue_offset == 0


@pytest.mark.kerolox(brokers=2)
class TestMarked:
    def test_brokers(self, kerolox_broker):
        assert len(kerolox_broker.cluster.brokers) == 2

    @pytest.mark.kerolox(brokers=1, broker_name="near")
    def test_the_nearest_marker_counts(self, kerolox_broker):
        assert [broker.broker.options.broker_name for broker in kerolox_broker.cluster.brokers] == ["near"]


def test_shared(kerolox_shared_broker, kerolox_broker):
    assert kerolox_shared_broker.address != kerolox_broker.address
"""

ASYNC = """
import pytest
from kerolox import Message, Producer


@pytest.mark.asyncio
async def test_async(kerolox_nameserver):
    async with Producer(kerolox_nameserver, group="shop") as producer:
        receipt = await producer.send(Message("orders", b"hello"))
    assert receipt.ok
"""

# What is loaded when no test asks for a broker.
QUIET = """
import sys

def test_nothing_of_kerolox_is_loaded():
    loaded = sorted(name for name in sys.modules if name.startswith("kerolox"))
    assert loaded == ["kerolox", "kerolox.testing", "kerolox.testing.pytest_plugin"], loaded
    assert "msgspec" not in sys.modules
"""


def run_pytest(directory: Path, source: str, *args: str) -> str:
    (directory / "test_theirs.py").write_text(source)
    (directory / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--strict-markers", "-q", *args]
    # PYTEST_ADDOPTS and the like of this run are not theirs.
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("source", "passed", "args"),
    [
        (BLOCKING, 5, ("-p", "no:asyncio", "-p", "no:anyio")),
        (ASYNC, 1, ()),
        (QUIET, 1, ("-p", "no:hypothesispytest")),
    ],
    ids=["blocking, no plugin", "async", "not used"],
)
def test_fixtures(tmp_path: Path, source: str, passed: int, args: tuple[str, ...]) -> None:
    assert f"{passed} passed" in run_pytest(tmp_path, source, *args)


def test_the_fixtures_are_listed_with_what_they_are(tmp_path: Path) -> None:
    listed = run_pytest(tmp_path, QUIET, "--fixtures")
    assert "kerolox_broker -- " in listed
    assert "A broker and its name server, made for this test" in listed
    assert "@pytest.mark.kerolox(brokers=1, clock=..., **options)" in run_pytest(tmp_path, QUIET, "--markers")
