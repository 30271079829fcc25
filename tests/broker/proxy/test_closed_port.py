"""A broker without a gRPC port costs what it did before there was one, and says what an open port needs."""

from __future__ import annotations

import subprocess
import sys

STARTED = """
import asyncio, sys
from kerolox.testing import running_broker

async def main():
    async with running_broker():
        pass

asyncio.run(main())
print(" ".join(sys.modules))
"""
WITHOUT_HPACK = """
import sys
sys.modules["hpack"] = None  # as if it were not installed
from kerolox.cli.main import app
app()
"""


def test_nothing_of_grpc_is_imported_for_a_closed_port() -> None:
    done = subprocess.run(
        [sys.executable, "-c", STARTED], capture_output=True, text=True, timeout=60, check=True
    )
    loaded = set(done.stdout.split())
    assert "kerolox.broker.proxy.room" in loaded
    for name in (
        "hpack", "google.protobuf", "grpc", "kerolox.proxy", "kerolox.proxy.service", "kerolox.net.grpc_peer",
        "kerolox.net.grpc_server", "kerolox.protocol.http2", "kerolox.protocol.grpc",
        "kerolox.broker.proxy.local",
    ):  # fmt: skip
        assert name not in loaded


def test_a_missing_library_is_named_with_the_command_that_installs_it() -> None:
    done = subprocess.run(
        [
            sys.executable, "-c", WITHOUT_HPACK, "up", "--ephemeral",
            "--nameserver-listen", "127.0.0.1:0", "--broker-listen", "127.0.0.1:0",
            "--grpc-listen", "127.0.0.1:0",
        ],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "pip install 'kerolox[grpc]'" in done.stderr
    assert "hpack" in done.stderr
    assert "Traceback" not in done.stderr
