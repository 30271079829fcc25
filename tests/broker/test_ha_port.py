"""The port for followers is taken, and they are turned away."""

from __future__ import annotations

import asyncio
import logging
import socket
from pathlib import Path

import pytest

from kerolox.net.server import ListenFailed
from kerolox.testing.broker import running_broker

from .talk import until


async def test_a_follower_is_turned_away_and_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_broker(directory=tmp_path) as running:
        port = running.broker.endpoints.ha_port
        assert port == running.broker.endpoints.port + 1
        with caplog.at_level(logging.WARNING):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            assert await asyncio.wait_for(reader.read(), 5) == b""
            writer.close()
            await until(lambda: "follower_refused peer=127.0.0.1" in caplog.text)
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
