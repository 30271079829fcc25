"""A broker is killed again and again under load: what it acknowledged is there, in order, and goes on."""

from __future__ import annotations

import json
import os
import platform
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .client import Client, Record, lane_and_number, missing, out_of_order, wait_until
from .cluster import Broker, Cluster

Unique = Callable[[str], str]

FULL_KILLS = int(os.environ.get("KEROLOX_KILLS", "50"))


@pytest.mark.parametrize(
    ("kills", "lanes"), [(3, 4), pytest.param(FULL_KILLS, 16, marks=pytest.mark.long)], ids=["some", "full"]
)
@pytest.mark.timeout(2400)
def test_nothing_acknowledged_is_lost(
    cluster: Cluster, fragile: Broker, client: Client, unique: Unique, kills: int, lanes: int
) -> None:
    """As many producers as lanes; a lane is a queue. With the environment variable KEROLOX_CRASH_RESULT the
    numbers are written to the file it names, whatever they are."""
    seed = int(os.environ.get("KEROLOX_SEED", "1"))
    chance = random.Random(seed)
    began_s = time.monotonic()
    topic = cluster.create_topic(client.driver, unique("topic"), lanes, broker=fragile)
    # Before the first message, so that nothing is old when they come.
    orderly = client.push(unique("orderly"), topic, orderly=True, body=True)
    concurrent = client.push(unique("concurrent"), topic, body=True)
    load = client.load(topic, lanes=lanes, producers=lanes, size=200, options={"sendMsgTimeout": 2000})
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
    waiting = {"orderly", "concurrent"}

    def complete() -> bool:
        collect()
        waiting.difference_update([name for name in waiting if not missing(received[name], sent["acked"])])
        return not waiting

    try:
        wait_until(complete, f"both consumers get all {sent['total']} messages (seed {seed})", 60)
    finally:
        _keep({
            "broker": cluster.kind,
            "kills": kills,
            "seed": seed,
            "seconds": round(time.monotonic() - began_s),
            "producers": lanes,
            "queues": lanes,
            "acknowledged": sent["total"],
            "answers": sent["statuses"],
            "failed_sends": sum(sent["errors"].values()),
            "consumers": {name: _numbers(records, sent["acked"]) for name, records in received.items()},
            "order_violations": len(out_of_order(received["orderly"])),
            "different_messages_in_one_place": len(_changed_places(received)),
        })  # fmt: skip
    assert set(sent["statuses"]) == {"SEND_OK"}
    assert out_of_order(received["orderly"]) == [], f"seed {seed}"
    # Where a queue has a message, everybody sees the same one.
    assert _changed_places(received) == [], f"seed {seed}"


def _numbers(records: list[Record], acked: list[int]) -> dict[str, int]:
    """What a consumer came to. It may see messages whose acknowledgement got lost: more than were counted."""
    seen = Counter(lane_and_number(record) for record in records)
    return {
        "consumed": len(seen),
        "acknowledged_and_consumed": sum(number < acked[lane] for lane, number in seen),
        "lost": sum(acked) - sum(number < acked[lane] for lane, number in seen),
        "duplicates": len(records) - len(seen),
    }


def _changed_places(received: dict[str, list[Record]]) -> list[tuple[int, int]]:
    places: dict[tuple[int, int], str] = {}
    changed = []
    for records in received.values():
        for record in records:
            place = (record["queueId"], record["queueOffset"])
            if places.setdefault(place, record["msgId"]) != record["msgId"]:
                changed.append(place)
    return changed


def _keep(numbers: dict[str, Any]) -> None:
    path = os.environ.get("KEROLOX_CRASH_RESULT")
    if not path:
        return
    machine = {
        "cpus": os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }
    result = {"when": time.strftime("%Y-%m-%d", time.gmtime()), "machine": machine, **numbers}
    Path(path).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
