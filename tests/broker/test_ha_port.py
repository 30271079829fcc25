"""The port for followers: taken before anything else, and a log is copied from it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from pathlib import Path

import pytest

from kerolox.net.listener import ListenFailed
from kerolox.protocol.ha import pack_report
from kerolox.testing.broker import running_broker

from .talk import until


async def test_a_follower_is_served_while_the_broker_leads(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_broker(directory=tmp_path) as running:
        port = running.broker.endpoints.ha_port
        assert port == running.broker.endpoints.port + 1
        await running.broker.store.put("T", 0, b"copied")
        record = await running.broker.store.message_at(0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(pack_report(0))
        head = await asyncio.wait_for(reader.readexactly(12), 5)
        assert head == bytes(8) + len(record).to_bytes(4, "big")
        assert await reader.readexactly(len(record)) == record
        with caplog.at_level(logging.WARNING):
            await running.broker.leadership.follow("another one leads")
            assert await asyncio.wait_for(reader.read(), 5) == b""
            writer.close()
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(pack_report(0))
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), 5) == b""
            writer.close()
            await until(lambda: "follower_refused peer=127.0.0.1" in caplog.text)
        await running.broker.leadership.lead()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(pack_report(len(record) - 1))
        assert (
            await reader.readexactly(13) == (len(record) - 1).to_bytes(8, "big") + b"\0\0\0\1" + record[-1:]
        )
        writer.close()
    with pytest.raises(OSError):
        await asyncio.open_connection("127.0.0.1", port)


async def test_a_port_in_use_is_told_before_anything_else_is_touched(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ListenFailed) as refused:
            async with running_broker(directory=tmp_path, ha_port=port):
                pass
    assert f"127.0.0.1:{port}, the port for followers (haListenPort)" in str(refused.value)
    assert not (tmp_path / "store").exists()


async def test_any_port_can_be_taken(tmp_path: Path) -> None:
    async with running_broker(directory=tmp_path, ha_port=0) as running:
        port = running.broker.endpoints.ha_port
        assert port > 0
        assert running.broker.endpoints.ha_address == f"127.0.0.1:{port}"
