"""Brokers with few descriptors: connections, queues and the log share them, and sends go on."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kerolox.net.dialer import Dialer
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import Command
from kerolox.protocol.headers.send import SendRequestV2
from kerolox.testing.process import BrokerProcess
from tests.broker.talk import send_fields

FLOOD = 600


@contextmanager
def open_files(count: int) -> Iterator[None]:
    """Let this process open that many files meanwhile."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


class SmallBroker(BrokerProcess):
    """A broker process that may open few files."""

    def __init__(self, directory: Path, open_files: int) -> None:
        super().__init__(directory, "mappedFileSizeCommitLog=1048576")
        self._open_files = open_files

    @property
    def command(self) -> list[str]:
        return ["sh", "-c", 'ulimit -Sn "$0" && exec "$@"', str(self._open_files), *super().command]


@contextmanager
def small_broker(directory: Path, open_files: int) -> Iterator[BrokerProcess]:
    broker = SmallBroker(directory, open_files)
    try:
        broker.start()
        yield broker
    finally:
        broker.stop()


async def send(dialer: Dialer, address: str, topic: str, queue_id: int = 0, body: bytes = b"x") -> None:
    header = SendRequestV2(**send_fields(topic, queue_id=queue_id))
    for _ in range(50):
        answer = await dialer.call(address, RequestCode.SEND_MESSAGE_V2, header, body, timeout_s=20)
        if answer.code != 14:
            break
        await asyncio.sleep(0.1)  # may be sent again
    assert answer.code == 0, answer.remark


async def connect_many(address: str, count: int) -> list[asyncio.StreamWriter]:
    """Connections that have spoken: nobody may close them for others."""
    host, port = address.rsplit(":", 1)
    frame = Command(code=9999, opaque=1).encode()
    found = []
    for _ in range(count):
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(frame)
        found.append(writer)
    return found


async def test_a_client_with_all_connections_it_can_get_stops_no_sends(tmp_path: Path) -> None:
    """600 connections to each of two ports once took every descriptor, and a failed open fenced the store."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 3 * FLOOD:
        pytest.skip(f"this process may open {hard} files, the test needs {3 * FLOOD}")
    with small_broker(tmp_path, 1024) as broker, open_files(max(soft, 3 * FLOOD)):
        async with Dialer() as dialer:
            await send(dialer, broker.address, "first")
            flood = await connect_many(broker.address, FLOOD)
            flood += await connect_many(broker.nameserver_address, FLOOD)
            for number in range(100):
                await send(dialer, broker.address, f"topic{number}", body=b"x" * 30_000)
            await asyncio.sleep(2)  # queues are flushed
            await send(dialer, broker.address, "last")
            for writer in flood:
                writer.close()


async def test_more_queues_than_descriptors(tmp_path: Path) -> None:
    """400 topics under ``ulimit -n 256`` once fenced the store."""
    with small_broker(tmp_path, 256) as broker:
        async with Dialer() as dialer:
            for number in range(400):
                await send(dialer, broker.address, f"topic{number}", number % 4)
            await asyncio.sleep(2)
            for number in range(400):
                await send(dialer, broker.address, f"topic{number}", number % 4)
