"""A damaged store, repaired by us, under Apache's broker: what is left is delivered, all of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kerolox.protocol.bodies.topics import TopicConfig
from kerolox.protocol.record import decode_record
from kerolox.store.disk.files import Files
from kerolox.store.offline.layout import find_layout
from kerolox.store.offline.mend import apply_skip, plan_skip
from kerolox.store.offline.verify import verify
from kerolox.store.rebuild import rebuild
from kerolox.store.tables.topics import TopicTable

from .conftest import Factory
from .driver import JavaDriver
from .processes import JavaNameServer
from .store_views import BrokerView, Queue
from .store_writer import LOG_FILE_BYTES, Acknowledged, Plan, store_options, table_of, write
from .test_store import Peer, Unique

DAMAGE_BYTES = 40_000


def spoil(store: Path, offset: int) -> None:
    path = store / "commitlog" / f"{offset - offset % LOG_FILE_BYTES:020d}"
    data = bytearray(path.read_bytes())
    at = offset % LOG_FILE_BYTES + 30
    data[at : at + DAMAGE_BYTES] = b"\xee" * DAMAGE_BYTES
    path.write_bytes(data)


def by_queue(messages: list[Acknowledged], queues: list[Queue]) -> dict[Queue, list[int]]:
    return {
        queue: [one.queue_offset for one in messages if (one.topic, one.queue_id) == queue]
        for queue in queues
    }


class Tagged(BrokerView):
    """Asks for one tag only."""

    tag = "B"

    def records(self, queue: Queue) -> list[bytes]:
        from .store_views import PULL_MESSAGE, SUBSCRIPTION, split

        found: list[bytes] = []
        offset, end = 0, self.max_offset(queue)
        while offset < end:
            answer = self.ask(
                PULL_MESSAGE, consumerGroup=self.group, topic=queue[0], queueId=queue[1], queueOffset=offset,
                maxMsgNums=32, sysFlag=SUBSCRIPTION, commitOffset=0, suspendTimeoutMillis=0,
                subscription=self.tag, subVersion=0, expressionType="TAG",
            )  # fmt: skip
            assert answer.code in (0, 20), answer.remark
            offset = int(answer.ext_fields["nextBeginOffset"])
            found += split(answer.body)
        return found


@pytest.mark.parametrize("damaged_file", [0, 1])
def test_messages_around_the_damage_are_delivered(
    java: Factory,
    java_driver: JavaDriver,
    java_nameserver: JavaNameServer,
    unique: Unique,
    damaged_file: int,
) -> None:
    peer = Peer(java, java_driver, java_nameserver.address, f"broker-repaired-{damaged_file}")
    topics = ((unique("a"), 3), (unique("b"), 2))
    (peer.store / "config").mkdir(parents=True)
    table = TopicTable(Files(), peer.store / "config")
    for topic, count in topics:
        table.put(TopicConfig(topic_name=topic, read_queue_nums=count, write_queue_nums=count))
    table.save()
    queues = [(topic, queue_id) for topic, count in topics for queue_id in range(count)]
    written = write(Plan(str(peer.store), peer.broker.address, topics, count=400), kill=False)
    inside = [one for one in written if one.physical // LOG_FILE_BYTES == damaged_file]
    offset = inside[len(inside) // 2].physical
    spoil(peer.store, offset)
    layout = find_layout(peer.store, store_options(peer.store))
    plan = plan_skip(layout, offset)
    apply_skip(layout, plan)
    made = rebuild(layout)
    lost = [one for one in written if offset <= one.physical < plan.valid_from]
    assert made.holes == len(lost) > 2
    kept = [one for one in written if one not in lost]
    expected = by_queue(kept, queues)

    for round_number in range(2):  # a restart looks at the queues again
        peer.broker.start()
        repeated = 0
        for queue in queues:
            records = [decode_record(record) for record in peer.view.records(queue)]
            offsets = [message.queue_offset for message in records]
            assert sorted(set(offsets)) == expected[queue]
            assert offsets == sorted(offsets)
            assert all(message.topic == queue[0] for message in records)
            repeated += len(offsets) - len(set(offsets))
            tagged = [decode_record(r).queue_offset for r in Tagged(peer.broker.address).records(queue)]
            assert tagged == [
                one.queue_offset
                for one in kept
                if (one.topic, one.queue_id) == queue and table_of(one.number).get("TAGS") == "B"
            ]
        assert repeated == sum(len(one) for one in by_queue(lost, queues).values())
        if round_number:
            peer.send(topics, unique("pid"), 0, 60)
        peer.broker.stop()
    # What Apache's broker has made of it, and added, agrees with itself in our eyes too.
    report = verify(layout)
    assert report.findings == [], report.findings
    assert report.records > len(kept) + 60
