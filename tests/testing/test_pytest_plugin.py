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


@pytest.mark.kerolox(followers=1, sync=True)
def test_what_a_killed_leader_took_is_read_from_its_follower(kerolox_broker, kerolox_nameserver):
    with Producer(kerolox_nameserver, group="shop") as producer:
        assert producer.send(Message("orders", b"hello")).ok
    kerolox_broker.caught_up()
    kerolox_broker.kill("broker-a")
    with PullConsumer(
        kerolox_nameserver, group="g", topics=["orders"], options=PullOptions(start="first")
    ) as consumer:
        assert [message.body for message in consumer.poll(20)] == [b"hello"]


def test_shared(kerolox_shared_broker, kerolox_broker):
    assert kerolox_shared_broker.address != kerolox_broker.address
"""

OPTIONS = """
import pytest
from kerolox.testing import BrokerThread


def options_of(broker):
    return broker.cluster.brokers[0].broker.options


@pytest.mark.kerolox(transactionCheckInterval=1000, flushDiskType="SYNC_FLUSH", enablePropertyFilter="false")
class TestKeysOfRocketMQ:
    def test_they_count(self, kerolox_broker):
        options = options_of(kerolox_broker)
        assert options.transaction_check_ms == 1000
        assert options.flush_mode.name == "SYNC"
        assert options.property_filter is False

    @pytest.mark.kerolox(transaction_check_ms=2000, brokerName="near", **{"tls.server.mode": "disabled"})
    def test_the_nearest_counts_by_whichever_name(self, kerolox_broker):
        options = options_of(kerolox_broker)
        assert options.transaction_check_ms == 2000
        assert options.broker_name == "near"
        assert options.tls_mode.value == "disabled"
"""

WRONG = """
import pytest


@pytest.mark.kerolox(transactionCheckIntervall=1000)
def test_a_slip_for_a_key(kerolox_broker): ...


@pytest.mark.kerolox(transaction_chek_ms=1000)
def test_a_slip_for_our_name(kerolox_broker): ...


@pytest.mark.kerolox(broker=3)
def test_a_slip_for_a_word_of_ours(kerolox_broker): ...


@pytest.mark.kerolox(transaction_check_ms=1, transactionCheckInterval=1)
def test_twice(kerolox_broker): ...


@pytest.mark.kerolox(flushDiskType="NEVER")
def test_a_wrong_value(kerolox_broker): ...


@pytest.mark.kerolox(3)
def test_without_keyword(kerolox_broker): ...


@pytest.mark.kerolox(clock="stopped")
def test_no_clock(kerolox_broker): ...
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


def run_pytest(directory: Path, source: str, *args: str, code: int = 0) -> str:
    (directory / "test_theirs.py").write_text(source)
    (directory / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--strict-markers", "-q", *args]
    # PYTEST_ADDOPTS and the like of this run are not theirs.
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("source", "passed", "args"),
    [
        (BLOCKING, 6, ("-p", "no:asyncio", "-p", "no:anyio")),
        (OPTIONS, 2, ()),
        (ASYNC, 1, ()),
        (QUIET, 1, ("-p", "no:hypothesispytest")),
    ],
    ids=["blocking, no plugin", "options", "async", "not used"],
)
def test_fixtures(tmp_path: Path, source: str, passed: int, args: tuple[str, ...]) -> None:
    assert f"{passed} passed" in run_pytest(tmp_path, source, *args)


def test_wrong_marks_say_what_is_meant(tmp_path: Path) -> None:
    said = run_pytest(tmp_path, WRONG, code=1)
    assert "7 errors" in said
    for what in (
        "transactionCheckIntervall = 1000: expected an option of the broker, by kerolox's name or "
        "RocketMQ's key. "
        "Did you mean transactionCheckInterval",
        "Did you mean transaction_check_ms",
        "option broker = 3: expected an option of the broker",
        "Did you mean brokers",
        "only one of transactionCheckInterval and transaction_check_ms: they are the same option",
        "option flushDiskType = 'NEVER': expected one of ",
        "only keywords, as in kerolox(brokers=3)",
        "option clock = 'stopped': expected a Clock, or \"manual\"",
    ):
        assert what in said, what


def test_the_fixtures_are_listed_with_what_they_are(tmp_path: Path) -> None:
    listed = run_pytest(tmp_path, QUIET, "--fixtures")
    assert "kerolox_broker -- " in listed
    assert "Broker and its name server, created for this test" in listed
    markers = run_pytest(tmp_path, QUIET, "--markers")
    assert "@pytest.mark.kerolox(brokers=1, followers=0, clock=..., **options)" in markers
