"""Fixtures for tests against Apache RocketMQ's Java programs.

One name server, one broker and one driver serve a whole run, since starting JVMs is what costs;
factories make more where a test needs its own.  Tests keep apart by topic and group names.
"""

from __future__ import annotations

import itertools
import os
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .driver import JavaDriver
from .jars import Jars, PeersUnavailable, get_jars
from .java import find_java
from .processes import JavaBroker, JavaNameServer, JavaProcess, kill_all

HERE = Path(__file__).parent
GROUP = "peers"


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Mark these tests and keep them in one worker, for they share the processes."""
    ours = [item for item in items if HERE in item.path.parents]
    for item in ours:
        item.add_marker(pytest.mark.peers)
        item.add_marker(pytest.mark.xdist_group(GROUP))
        if _is_left_out(item):
            item.add_marker(pytest.mark.full)
    yield
    if hasattr(config, "workerinput") and config.getoption("loadgroup", False):
        for item in ours:
            _name_group(item)


# What the gate leaves to ``make peers``, to stay short. First, stories told to Apache's own servers: with
# Apache's own client they say something about the story, not about us; with our client a few stay.
AT_APACHE_STAYS = {
    "test_the_other_kind_takes_its_share", "test_our_broker_registers_over_tls", "test_all_kinds_of_messages",
    "test_all_of_a_topic_and_on_from_there", "test_java_reads_what_python_sends",
    "test_nobody_goes_further_than_he_may",
}  # fmt: skip
# Second, stores that change hands: each start of Apache's broker takes half a minute of a core. Logs
# stay, and of those after a kill and after a stop the one after a kill. Third, Spark's JVM beside them.
HAND_OVERS = {"test_delays", "test_timers", "test_transactions"}
LEFT_OUT = {
    "test_messages_survive_kill_and_clean_restart", "test_extensions_in_turns",
    "test_a_store_changes_hands_while_messages_wait", "test_messages_around_the_damage_are_delivered",
    "test_open_transactions_change_hands", "test_what_waits_comes_at_its_time",
    "test_the_list_is_what_apaches_broker_tells", "test_apaches_broker_registers_over_tls",
    "test_we_go_back_to_what_apaches_leader_has", "test_every_case_of_h2spec_passes",
    "test_ten_thousand_messages_while_one_of_two_name_servers_is_killed",
    "test_apaches_follower_acts_for_our_leader",  # which copies tables after a minute
    "test_our_follower_acts_under_apaches_name_server_and_sends_to_apaches_broker",
    "test_readers_go_on_at_apaches_follower",
    # Ours alone, and waiting: tests/broker has the same without Java's client.
    "test_every_level_through_a_restart_and_a_kill", "test_what_waits_survives",
    "test_what_is_recalled_does_not_come", "test_enough_attempts_make_a_dead_letter_that_can_be_sent_again",
    "test_two_brokers_under_our_controller",
    "test_messages_of_an_account", "test_tools_for_accounts", "test_decisions",  # with RocketMQ 4's programs
    "test_a_directory_born_at_apaches_member", "test_a_plain_log_goes_on_in_a_group",
    # Strangers, to whom ours answers late.
    "test_who_is_not_known_cannot_send", "test_who_is_not_known_cannot_read", "test_java_is_not_known",
    "test_who_is_let_in_later_begins_then", "test_commands_have_the_keys_of_the_environment",
}  # fmt: skip


# Of the stories told to our broker as a DLedger group of one, which are the same: these.
AT_LEDGER_STAYS = {
    "test_every_way_to_send", "test_only_the_tags_asked_for", "test_find_messages", "test_outcomes",
}  # fmt: skip


def _is_left_out(item: pytest.Item) -> bool:
    name = getattr(item, "originalname", item.name)
    if name in LEFT_OUT or "spark" in getattr(item, "fixturenames", ()):
        return True
    kind = getattr(item, "callspec", None)
    if kind is None:
        return False
    if item.path.stem in HAND_OVERS and kind.params.get("clean") is True:
        return True
    row = kind.params.get("row")
    if row is not None and getattr(row, "leader", "") == getattr(row, "follower", "") == "apache":
        return True
    if kind.params.get("cluster") == "ledger":
        return name not in AT_LEDGER_STAYS
    told = item.path.parent.name in ("scenarios", "client_scenarios") and "apache" in kind.params.values()
    return told and name not in AT_APACHE_STAYS


def _name_group(item: pytest.Item) -> None:
    """Put the group into the test's id, where pytest-xdist's scheduler looks for it.

    pytest-xdist does so by setting ``_nodeid``, which pytest 9.2 no longer reads.
    """
    if not item.nodeid.endswith(f"@{GROUP}") and hasattr(item, "_id"):
        item._id = type(item._id).parse(f"{item.nodeid}@{GROUP}")


def pytest_sessionfinish() -> None:
    kill_all()


def available(version: str | None = None) -> Jars:
    """The jars and a runtime for them; where either is missing, skip loudly or fail as asked."""
    try:
        find_java()
        return get_jars(version)
    except PeersUnavailable as missing:
        message = f"NO JAVA PEERS: {missing}"
        if os.environ.get("KEROLOX_REQUIRE_PEERS") == "1":
            pytest.fail(message, pytrace=False)
        pytest.skip(message)


@pytest.fixture(scope="session")
def peers() -> Jars:
    """Apache's jars in the version of this run (KEROLOX_PEERS_VERSION, 5.x unless told)."""
    return available()


class Factory:
    """Makes Java processes in folders of their own and ends them all at the close."""

    def __init__(self, jars: Jars, base: Path) -> None:
        self.jars = jars
        self.base = base
        self._made: list[JavaProcess] = []
        self._numbers = itertools.count(1)

    def _home(self, kind: str) -> Path:
        return self.base / f"{kind}-{next(self._numbers)}"

    def _keep(self, process: JavaProcess, start: bool) -> None:
        self._made.append(process)
        if start:
            process.start()

    def nameserver(self, *, start: bool = True, jars: Jars | None = None, **kwargs: Any) -> JavaNameServer:
        made = JavaNameServer(jars or self.jars, self._home("namesrv"), **kwargs)
        self._keep(made, start)
        return made

    def broker(
        self, nameservers: str | list[str], *, start: bool = True, jars: Jars | None = None, **kwargs: Any
    ) -> JavaBroker:
        made = JavaBroker(jars or self.jars, self._home("broker"), nameservers, **kwargs)
        self._keep(made, start)
        return made

    def driver(self, *, start: bool = True, jars: Jars | None = None, **kwargs: Any) -> JavaDriver:
        made = JavaDriver(jars or self.jars, self._home("driver"), **kwargs)
        self._keep(made, start)
        return made

    def finish(self) -> None:
        for process in reversed(self._made):
            process.finish()


@pytest.fixture(scope="session")
def java_session(peers: Jars, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Factory]:
    """A factory whose processes live as long as the run."""
    factory = Factory(peers, tmp_path_factory.mktemp("java"))
    yield factory
    factory.finish()


@pytest.fixture
def java(peers: Jars, tmp_path: Path) -> Iterator[Factory]:
    """A factory whose processes end with the test."""
    factory = Factory(peers, tmp_path)
    yield factory
    factory.finish()


@pytest.fixture(scope="session")
def java_driver(java_session: Factory) -> JavaDriver:
    """The driver of the run; headers in JSON."""
    return java_session.driver()


@pytest.fixture(scope="session")
def java_driver_binary(java_session: Factory) -> JavaDriver:
    """A second driver, started only if asked for; headers in the binary encoding."""
    return java_session.driver(serialize_type="ROCKETMQ")


@pytest.fixture(scope="session")
def java_nameserver(java_session: Factory) -> JavaNameServer:
    """The shared name server: do not stop it, make one with ``java.nameserver()`` instead."""
    return java_session.nameserver()


@pytest.fixture(scope="session")
def java_broker(java_session: Factory, java_nameserver: JavaNameServer) -> JavaBroker:
    """The shared broker, registered at the shared name server: do not stop it."""
    return java_session.broker(java_nameserver.address)


@pytest.fixture
def unique(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Names for topics and groups that no other test uses."""
    numbers = itertools.count(1)
    # Two files may have a test of the same name.
    file = zlib.crc32(request.node.path.name.encode()) & 0xFFFF
    test = re.sub(r"[^A-Za-z0-9]+", "_", f"{request.node.name}_{file:04x}").strip("_")

    def name(kind: str) -> str:
        return f"{kind}_{test}_{next(numbers)}"

    return name


@pytest.fixture(autouse=True)
def _stop_clients(request: pytest.FixtureRequest) -> Iterator[None]:
    """Shut down whatever clients a test left running in the shared drivers."""
    yield
    for name in ("java_driver", "java_driver_binary"):
        if name in request.fixturenames:
            driver = request.getfixturevalue(name)
            if driver.running:
                driver.call("stopAll")
                driver.clear()
