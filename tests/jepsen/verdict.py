"""What is looked at when a cluster is well: what clients were told, and the files of all brokers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from kerolox.errors import KeroloxError
from tests.peers.wire import request
from tests.rig import checker as promises
from tests.rig.logs import Record, read_queue, records_of
from tests.rig.waiting import TooLate, wait_until

from . import checker
from .checker import Election, Epoch
from .cluster import GROUP_NAME, HEALED_S, QUEUES, Cluster
from .nodes import BrokerNode
from .reader import GROUP

QUERY_CONSUMER_OFFSET, GET_MAX_OFFSET = 14, 30
ELECTED = re.compile(
    r"(?:master_elected group='[^']+' id=(?P<id>\d+)|broker_elected id=(?P<own>\d+)).*? epoch=(?P<epoch>\d+)"
)


def check(cluster: Cluster) -> tuple[int, int]:
    """Everybody is well. Raises Violation; else how many messages and bytes there are."""
    cluster.pause()
    end = _wait_equal(cluster)
    logs = {one.name: one.log(end) for one in cluster.brokers}
    first = logs[cluster.brokers[0].name]
    records = records_of(first)
    ends = checker.queue_ends(records, cluster.topic)
    _wait_read(cluster, sum(ends.values()))
    sends, reads = list(cluster.history.sends), list(cluster.history.reads)
    epochs = {one.name: read_epochs(one.store) for one in cluster.brokers}
    leader = cluster.leader()
    wrong = [
        *(f"{name}: {text}" for name, one in logs.items() for text in promises.not_equal(first, one)),
        *promises.missing((send for send in sends if send.ok), records, cluster.topic),
        *promises.acknowledged_twice(sends),
        *promises.invented(sends, records, cluster.topic),
        *promises.gaps(records, cluster.topic),
        *checker.twice_in_log(sends, records, cluster.topic),
        *checker.out_of_order(sends),
        *checker.two_leaders(epochs[leader.name], records, sends),
        *checker.epochs_differ(epochs),
        *checker.elected_twice(_elections(cluster)),
        *checker.read_what_is_not_there(reads, records, cluster.topic),
        *checker.skipped(reads),
        *checker.unread(reads, records, cluster.topic),
        *checker.committed_beyond(list(cluster.history.commits), ends),
        *(
            text
            for one in cluster.brokers
            for text in checker.offsets_beyond(one.name, saved_offsets(one.store, cluster.topic), ends)
        ),
        *(
            text
            for topic, history in cluster.more_sends.items()
            for text in (
                *promises.missing(history.sends, records, topic),
                *(f"{topic}: {text}" for text in _unreachable(cluster, topic, records)),
            )
        ),
        *_unexpected(cluster),
    ]
    cluster.judge(wrong)
    cluster.resume()
    return len(records), len(first.data)


def lost_at_leader(cluster: Cluster) -> list[str]:
    """When a cluster does not heal: what its leader lacks, for whoever has to find out."""
    try:
        cluster.pause()
        leader = cluster.leader()
        records = records_of(leader.log(leader.log_end()))
    except (OSError, AssertionError, KeroloxError) as error:
        return [f"nobody knows what is lost: {error}"]
    acked = (send for send in cluster.history.sends if send.ok)
    return [f"at {leader.name}: {text}" for text in promises.missing(acked, records, cluster.topic)]


def check_offsets(cluster: Cluster) -> None:
    """The leader has no progress of readers behind the end of a queue, at any time."""
    leader = cluster.leader()
    wrong: list[str] = []
    for queue in range(QUEUES):
        asked = {"topic": cluster.topic, "queueId": str(queue)}
        try:
            offset = request(
                leader.address, QUERY_CONSUMER_OFFSET, {**asked, "consumerGroup": GROUP}
            ).ext_fields
            end = request(leader.address, GET_MAX_OFFSET, asked).ext_fields
        except OSError:
            continue
        if "offset" in offset and "offset" in end:
            wrong += checker.offsets_beyond(
                f"the leader {leader.name}", {queue: int(offset["offset"])}, {queue: int(end["offset"])}
            )
    cluster.judge(wrong)


def check_tables(cluster: Cluster) -> None:
    """The leader has what was made before the faults, at any time."""
    leader, missing = cluster.leader(), ["nothing was asked"]

    def is_answered() -> bool:
        try:
            missing[:] = cluster.tables.missing(leader.address)
        except OSError:
            return False
        return True

    wait_until(is_answered, lambda: f"the leader {leader.name} shows its tables", HEALED_S)
    cluster.judge(missing)


def check_queues(cluster: Cluster) -> None:
    """All brokers stop. Their queues lead to the messages of their logs."""
    cluster.pause()
    end = _wait_equal(cluster)
    ends = checker.queue_ends(records_of(cluster.brokers[0].log(end)), cluster.topic)
    for broker in cluster.brokers:
        wait_until(
            lambda one=broker: _queue_ends(one, cluster.topic) == ends,  # type: ignore[misc]
            lambda one=broker: f"{one.name} gives out all up to {ends}: {_queue_ends(one, cluster.topic)}",  # type: ignore[misc]
            HEALED_S,
        )
    for broker in cluster.brokers:
        broker.end()
    wrong = []
    for broker in cluster.brokers:
        records = [one for one in records_of(broker.log(end)) if one.topic == cluster.topic]
        queues = {
            queue: read_queue(broker.store, cluster.topic, queue, sum(one.queue == queue for one in records))
            for queue in range(QUEUES)
        }
        wrong += promises.queues_not_equal(records, cluster.topic, queues, broker.name)
    cluster.judge(wrong)


def _wait_equal(cluster: Cluster) -> int:
    """Until all logs end at one place. What somebody gave up waiting for may come late, and they grow."""
    ends: list[int] = []

    def equal() -> bool:
        ends[:] = [one.log_end() for one in cluster.brokers]
        return len(set(ends)) == 1 and ends[0] >= 0

    wait_until(equal, lambda: f"all logs end at one place: {cluster.told()}", HEALED_S)
    return ends[0]


def _wait_read(cluster: Cluster, count: int) -> None:
    def all_read() -> bool:
        return len({(one.queue, one.offset) for one in cluster.history.reads}) >= count

    with suppress(TooLate):  # the checker says which are not
        wait_until(all_read, lambda: "all messages are read", HEALED_S)


def _unreachable(cluster: Cluster, topic: str, records: list[Record]) -> list[str]:
    """Whoever leads lets readers have what its log has."""
    ends = checker.queue_ends(records, topic)
    has = _queue_ends(cluster.leader(), topic)
    return [] if has == ends else [f"its queues end at {ends}, and readers get as far as {has}"]


def _queue_ends(broker: BrokerNode, topic: str) -> dict[int, int]:
    """What it says, of queues that have messages."""
    ends = {}
    for queue in range(QUEUES):
        try:
            told = request(broker.address, GET_MAX_OFFSET, {"topic": topic, "queueId": str(queue)})
        except OSError:
            continue
        if (end := int(told.ext_fields.get("offset", 0))) > 0:
            ends[queue] = end
    return ends


def _elections(cluster: Cluster) -> Iterator[Election]:
    for node in (*cluster.controllers, *cluster.brokers):
        for found in ELECTED.finditer(node.log_text()):
            id = int(found["id"] or found["own"])
            yield Election(GROUP_NAME, int(found["epoch"]), id, node.name)


def _unexpected(cluster: Cluster) -> list[str]:
    """Errors nobody thought of."""
    return [
        f"{node.name} says: {text[text.index('Traceback') :][:3000]}"
        for node in (cluster.nameserver, *cluster.controllers, *cluster.brokers)
        if "Traceback" in (text := node.log_text())
    ]


def read_epochs(store: Path) -> list[Epoch]:
    """The epochs of a log, from its file: how many, a CRC, then ``number-start`` each."""
    path = store / "epochFileCheckpoint"
    lines = path.read_text().split("\n")[2:] if path.exists() else []
    return [Epoch(*map(int, line.split("-"))) for line in lines if line]


def saved_offsets(store: Path, topic: str) -> dict[int, int]:
    """Where the reader is, by what a broker has on its disk."""
    path = store / "config" / "consumerOffset.json"
    if not path.exists():
        return {}
    text = re.sub(r"([{,])\s*(-?\d+)\s*:", r'\1"\2":', path.read_text())  # its keys are bare numbers
    table = json.loads(text)["offsetTable"].get(f"{topic}@{GROUP}", {})
    return {int(queue): int(offset) for queue, offset in table.items()}
