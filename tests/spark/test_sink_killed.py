"""A driver that is killed again and again: its query goes on from the checkpoint, with each row once."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from kerolox.client.sockets.socket_cluster import SocketCluster
from kerolox.testing.threads import BrokerThread

pytest.importorskip("pyspark")

from tests.spark.sinking import stored

pytestmark = [pytest.mark.long, pytest.mark.timeout(1_200)]
FILES, ROWS, KILLS = 8, 2_000, 2


def count(nameserver: str, topic: str) -> int:
    with SocketCluster(nameserver) as cluster:
        return sum(cluster.max_offset(queue) for queue in cluster.route(topic).readable)


def kill_driver(process: subprocess.Popen[bytes]) -> None:
    """Python and its JVM at once; the JVM's own Python workers find out by themselves."""
    children = psutil.Process(process.pid).children(recursive=True)
    killed = [child for child in children if child.name() == "java"]
    for child in killed:
        child.kill()
    process.kill()
    process.wait()
    psutil.wait_procs(killed, timeout=60)


def test_a_killed_driver_goes_on_where_it_was(broker: BrokerThread, topic: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    wanted: list[str] = []
    for number in range(FILES):
        lines = [f"{chr(97 + number)}{row:05}" for row in range(ROWS)]
        (tmp_path / "in" / f"{number:02}.txt").write_text("\n".join(lines))
        wanted += lines
    command = [
        sys.executable, "-m", "tests.spark.sink_driver", broker.nameserver_address, topic,
        str(tmp_path / "in"), str(tmp_path / "checkpoint"),
    ]  # fmt: skip
    rng = random.Random(11)
    root = Path(__file__).parents[2]
    for kill in range(KILLS):
        process = subprocess.Popen(command, cwd=root, stdout=subprocess.DEVNULL)
        target = (kill + 1) * FILES * ROWS // (KILLS + 2) + rng.randrange(ROWS)
        try:
            while count(broker.nameserver_address, topic) < target:
                assert process.poll() is None
                time.sleep(0.01)
        finally:
            kill_driver(process)
    subprocess.run(command, cwd=root, check=True, stdout=subprocess.DEVNULL, timeout=600)

    messages = stored(broker.nameserver_address, topic)
    assert sorted(message.text for message in messages) == sorted(wanted)
    last: dict[str, str] = {}
    for message in messages:
        key = message.properties["__SHARDINGKEY"]
        assert last.get(key, "") < message.text
        last[key] = message.text
