"""The store of the rebuild benchmark, written by Apache's broker: keys, tags, delays and transactions."""

from __future__ import annotations

import os
from pathlib import Path

from tests.peers.jars import get_jars
from tests.peers.processes import JavaBroker, JavaNameServer

from kerolox.blocking import Producer
from kerolox.client.messages import Message
from kerolox.client.send.transactions import TransactionState

TOPICS = ("orders", "payments", "shipments")
BODY_BYTES = 880
RECORD_BYTES = 1100  # about: with its head, its properties and those of the broker
BATCH = 1000
TAGS = ("TagA", "TagB", "TagC", "TagD")
DEFAULT_SIZES = {
    "mappedFileSizeCommitLog": 1 << 30,
    "mappedFileSizeConsumeQueue": 6_000_000,
    "maxHashSlotNum": 5_000_000,
    "maxIndexNum": 20_000_000,
    "mappedFileSizeTimerLog": 100 << 20,
    "autoCreateTopicEnable": True,
    "sendMessageThreadPoolNums": 2,
    "waitTimeMillsInSendQueue": 60_000,
    "transactionTimeOut": 3_600_000,
    "transactionCheckInterval": 3_600_000,
}


class _Commits:
    """Ends each transaction at once, every third with a rollback."""

    def __init__(self) -> None:
        self._count = 0

    def execute(self, message: Message, arg: object) -> TransactionState:
        self._count += 1
        return TransactionState.COMMIT if self._count % 3 else TransactionState.ROLLBACK

    def check(self, message: object) -> TransactionState:
        return TransactionState.COMMIT


class ApacheStore:
    """Apache's broker, in the sizes it has by default, on a directory of its own."""

    def __init__(self, folder: Path) -> None:
        jars = get_jars()
        self.version = jars.version
        self.nameserver = JavaNameServer(jars, folder / "namesrv")
        self.nameserver.start()
        self.broker = JavaBroker(
            jars,
            folder / "broker",
            self.nameserver.address,
            store=folder / "store",
            properties=DEFAULT_SIZES,
        )
        self.store = folder / "store"

    def start(self) -> None:
        self.broker.start()

    def stop(self) -> None:
        self.broker.stop()

    def fill(self, size_bytes: int) -> int:
        """Send until the log has this size; how many messages."""
        body = os.urandom(BODY_BYTES // 2).hex()
        listener = _Commits()
        with Producer(self.nameserver.address, group="rebuild", listener=listener) as producer:
            number = sent_bytes = rounds = 0
            while sent_bytes < size_bytes:
                topic = TOPICS[rounds % len(TOPICS)]
                batch = [
                    Message(
                        topic,
                        f"{each:012d}{body}",
                        tags=TAGS[each % len(TAGS)],
                        keys=(f"key{each}", f"customer{each % 50_000}"),
                    )
                    for each in range(number, number + BATCH)
                ]
                producer.send_batch(batch)
                number += BATCH
                sent_bytes += BATCH * RECORD_BYTES
                rounds += 1
                if rounds % 50 == 0:
                    producer.send(Message(topic, body, keys=f"late{rounds}", delay_level=18))
                    producer.send_in_transaction(Message(topic, body, keys=f"bought{rounds}", tags="TagT"))
        return number

    def close(self) -> None:
        self.broker.stop()
        self.nameserver.stop()
