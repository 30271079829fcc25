"""Stores of Apache's broker split and merged: Apache's broker opens what comes out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kerolox.blocking import Producer
from kerolox.cli.nameservers import run_admin
from kerolox.client.admin.calls import AdminCalls
from kerolox.client.admin.lookups import Lookups
from kerolox.client.messages import Message
from kerolox.pipeline.transfer import transfer as made_by
from kerolox.store.offline.layout import find_layout
from kerolox.store.options import StoreOptions
from tests.peers.conftest import available
from tests.peers.processes import JavaBroker, JavaNameServer

if TYPE_CHECKING:
    from kerolox.pipeline.runner import Runner

pytestmark = pytest.mark.long
COUNT = 400
SIZES = JavaBroker.DEFAULTS


@pytest.fixture(scope="module")
def nameserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaNameServer]:
    server = JavaNameServer(available(), tmp_path_factory.mktemp("namesrv"))
    server.start()
    try:
        yield server
    finally:
        server.stop()


def filled(nameserver: JavaNameServer, folder: Path, name: str) -> Path:
    """A store with messages of two topics, written by Apache's broker."""
    broker = JavaBroker(nameserver.jars, folder / name, nameserver.address, name=name)
    broker.start()
    try:
        with Producer(nameserver.address, group="fill") as producer:
            for topic in ("orders", "payments"):
                for start in range(0, COUNT, 100):
                    producer.send_batch(
                        [
                            Message(topic, f"{name} {number}", keys=f"{name}-{number}", tags="t")
                            for number in range(start, start + 100)
                        ]
                    )
    finally:
        broker.stop()
    return broker.store


def request(stores: list[Path], to: Path, **changes: object) -> made_by.TransferRequest:
    options = StoreOptions(
        commit_log_file_bytes=SIZES["mappedFileSizeCommitLog"],  # type: ignore[arg-type]
        queue_file_bytes=SIZES["mappedFileSizeConsumeQueue"],  # type: ignore[arg-type]
        index_slots=SIZES["maxHashSlotNum"],  # type: ignore[arg-type]
        index_entries=SIZES["maxIndexNum"],  # type: ignore[arg-type]
    )
    layouts = [find_layout(store, options) for store in stores]
    return made_by.TransferRequest(layouts, str(to), part_bytes=1 << 20, **changes)  # type: ignore[arg-type]


def served(nameserver: JavaNameServer, folder: Path, topic: str) -> tuple[list[str], list[str]]:
    """All bodies of a topic in the order of its queues, and those found by key, from Apache's broker."""
    broker = JavaBroker(nameserver.jars, folder / "home", nameserver.address, name="new", store=folder)
    broker.start()

    async def look(admin: AdminCalls) -> tuple[list[str], list[str]]:
        lookups, bodies, found = Lookups(admin), [], []
        bounds = {queue.queue_id: bound for queue, bound in (await admin.topic_stats(topic)).items()}
        for queue in await admin.queues(topic):
            offset = bounds[queue.queue_id].min_offset
            while offset < bounds[queue.queue_id].max_offset:
                messages, following, _ = await lookups.pull(topic, queue, offset)
                assert [message.queue_offset for message in messages] == [*range(offset, following)]
                bodies += [message.body.decode() for message in messages]
                offset = following
        for name in ("a", "b"):
            for number in range(0, COUNT, 40):
                messages = (await lookups.by_key(topic, f"{name}-{number}")).messages
                found += [message.body.decode() for message in messages]
        return bodies, found

    try:
        return run_admin(nameserver.address, look)
    finally:
        broker.stop()


def test_apaches_broker_opens_both(runner: Runner, tmp_path: Path, nameserver: JavaNameServer) -> None:
    stores = [filled(nameserver, tmp_path, name) for name in ("a", "b")]
    split = made_by.transfer(runner, request(stores[:1], tmp_path / "split", topics=("orders",)))
    assert split.messages == COUNT
    merged = made_by.transfer(runner, request(stores, tmp_path / "merged"))
    assert merged.holes == 0
    bodies, found = served(nameserver, tmp_path / "split", "orders")
    assert sorted(bodies) == sorted(f"a {number}" for number in range(COUNT))
    assert found == [f"a {number}" for number in range(0, COUNT, 40)]
    bodies, found = served(nameserver, tmp_path / "merged", "payments")
    assert sorted(bodies) == sorted(f"{name} {number}" for name in "ab" for number in range(COUNT))
    assert found == [f"{name} {number}" for name in "ab" for number in range(0, COUNT, 40)]
