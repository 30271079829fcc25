"""A broker is killed again and again under load: what it acknowledged is there, in order, and goes on."""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest

from .client import Client, Record, missing, out_of_order, wait_until
from .cluster import Broker, Cluster

Unique = Callable[[str], str]

LANES = 4


@pytest.mark.parametrize("kills", [3, pytest.param(50, marks=pytest.mark.long)])
@pytest.mark.timeout(1200)
def test_nothing_acknowledged_is_lost(
    cluster: Cluster, fragile: Broker, client: Client, unique: Unique, kills: int
) -> None:
    seed = int(os.environ.get("KEROLOX_SEED", "1"))
    chance = random.Random(seed)
    topic = cluster.create_topic(client.driver, unique("topic"), LANES, broker=fragile)
    # Before the first message, so that nothing is old when they come.
    orderly = client.push(unique("orderly"), topic, orderly=True, body=True)
    concurrent = client.push(unique("concurrent"), topic, body=True)
    load = client.load(topic, lanes=LANES, producers=LANES, size=200, options={"sendMsgTimeout": 2000})
    received: dict[str, list[Record]] = {"orderly": [], "concurrent": []}

    def collect() -> None:
        received["orderly"] += orderly.drain()
        received["concurrent"] += concurrent.drain()

    for _ in range(kills):
        load.more(chance.randrange(100, 500), timeout_s=60)
        fragile.kill()
        fragile.start()
        collect()
    load.more(200, timeout_s=60)
    sent = load.end()
    assert set(sent["statuses"]) == {"SEND_OK"}
    for name, records in received.items():

        def complete(records: list[Record] = records) -> bool:
            collect()
            return not missing(records, sent["acked"])

        wait_until(complete, f"the {name} consumer gets all {sent['total']} messages (seed {seed})", 60)
    assert out_of_order(received["orderly"]) == [], f"seed {seed}"
    # Where a queue has a message, everybody sees the same one.
    places: dict[tuple[int, int], str] = {}
    for record in received["orderly"] + received["concurrent"]:
        place = (record["queueId"], record["queueOffset"])
        assert places.setdefault(place, record["msgId"]) == record["msgId"], (place, seed)
