"""Brokers of one name under a controller, ours and Apache's in every mixture: the master is killed, and
nothing that was acknowledged is lost.

The same story is told to every mixture. The master is killed with SIGKILL while our client and Apache's send,
and read in order; the controller elects another one; both clients go on by themselves; the killed one comes
back, gives up what nobody else has, and follows. That is done once more, so that each broker has led and has
followed. At the end both have read every acknowledged message, each lane in its order, and all logs have the
same bytes, with each of them at the place that was told.

Stories are told a few at a time: most of it everybody waits for somebody.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.rig.history import History

from .controlled import APACHE, OURS, ControlledSet, fail_over
from .controllers import DLEDGER, JRAFT, make_controllers
from .driver import JavaDriver
from .jars import Jars
from .lanes import JavaLanes, OurLanes
from .ours import OurNameServer
from .readers import JavaReader, OurReader, check_read
from .replicas import Replica, eventually

pytestmark = pytest.mark.timeout(600)

TOPIC = "orders"
AT_ONCE = 2


class Row(NamedTuple):
    controller: str
    brokers: tuple[str, ...]
    members: int = 1

    def __str__(self) -> str:
        several = f"{self.members}-" if self.members > 1 else ""
        return f"{several}{self.controller}-over-{'-'.join(self.brokers)}"


ROWS = [
    Row(OURS, (OURS, OURS)),
    Row(OURS, (OURS, OURS, OURS)),
    Row(OURS, (OURS, APACHE)),
    Row(OURS, (APACHE, OURS)),
    Row(OURS, (APACHE, APACHE)),
    Row(DLEDGER, (OURS, OURS)),
    Row(DLEDGER, (OURS, APACHE)),
    Row(DLEDGER, (APACHE, OURS)),
    Row(DLEDGER, (APACHE, APACHE)),
    Row(DLEDGER, (OURS, OURS), 3),
    Row(DLEDGER, (APACHE, APACHE), 3),
    Row(JRAFT, (OURS, OURS)),
    Row(JRAFT, (OURS, APACHE)),
    Row(JRAFT, (APACHE, APACHE)),
]
# In the gate: ours alone, and each kind of controller over a mixed set.
GATE = [Row(OURS, (OURS, OURS)), Row(OURS, (OURS, APACHE)), Row(DLEDGER, (APACHE, OURS))]


def story(row: Row, home: Path, jars: Jars, driver: JavaDriver, nameserver: str) -> None:
    controllers = make_controllers(jars, row.controller, home, count=row.members)
    group = ControlledSet(controllers, nameserver, f"set-{row}", home, jars, row.brokers)
    try:
        controllers.start()
        group.start()
        topic = f"{TOPIC}-{row}"
        Replica(group.master).create_topic(topic, "")
        eventually(lambda: group.has_route(topic), group.tails)
        history = History()
        readers = [OurReader(nameserver, topic), JavaReader(driver, nameserver, topic)]
        loads = [OurLanes(nameserver, topic, history), JavaLanes(driver, nameserver, topic, history)]
        led = {group.master.address}
        for _ in range(len(row.brokers)):
            led.add(fail_over(group, loads).address)
        for load in loads:
            load.close()
        assert len(led) >= 2, led
        for reader in readers:
            check_read(reader, history.sends)
            reader.close()
        records = group.check(history, topic)
        assert len(records) > 300
    finally:
        group.finish()
        controllers.finish()


@pytest.fixture(scope="module")
def our_nameserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OurNameServer]:
    made = OurNameServer(tmp_path_factory.mktemp("nameserver"))
    made.start()
    yield made
    made.finish()


@pytest.fixture(scope="module")
def stories(
    request: pytest.FixtureRequest,
    peers: Jars,
    our_nameserver: OurNameServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[Row, Future[None]]]:
    """The stories of this run, begun a few at a time: each has JVMs that want a core."""
    if peers.is_4x:
        pytest.skip("RocketMQ 4 has no controller")
    wanted = {item.callspec.params.get("row") for item in request.session.items if hasattr(item, "callspec")}
    home = tmp_path_factory.mktemp("failover")
    rows = [row for row in ROWS if row in wanted]
    driver = JavaDriver(peers, home / "driver")  # the shared one loses its clients at the end of each test
    driver.start()
    with ThreadPoolExecutor(max_workers=AT_ONCE) as threads:
        yield {
            row: threads.submit(story, row, home / str(row), peers, driver, our_nameserver.address)
            for row in rows
        }
        threads.shutdown(cancel_futures=True)
    driver.kill()


@pytest.mark.parametrize(
    "row", [pytest.param(row, id=str(row), marks=[] if row in GATE else pytest.mark.full) for row in ROWS]
)
def test_the_master_is_killed(row: Row, stories: dict[Row, Future[None]]) -> None:
    stories[row].result()
