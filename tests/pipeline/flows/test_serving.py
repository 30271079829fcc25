"""The page of a run, to visitors of all kinds."""

from __future__ import annotations

import socket
import threading
import urllib.request
from contextlib import ExitStack

import pytest

from kerolox.pipeline.flows.serving import VISITORS_MAX, StatusServer


def test_silent_visitors_take_no_place_of_others(capfd: pytest.CaptureFixture[str]) -> None:
    """Each took a thread for ten seconds."""
    server = StatusServer("127.0.0.1", 0, lambda: "page", lambda: "figures", lambda: {"a": 1})
    host, _, port = server.address.rpartition(":")
    try:
        with ExitStack() as stack:
            for _ in range(3 * VISITORS_MAX):
                stack.enter_context(socket.create_connection((host, int(port)), 10))
            for path, text in (("/", b"page"), ("/metrics", b"figures"), ("/status.json", b'{"a": 1}')):
                with urllib.request.urlopen(f"http://{server.address}{path}", timeout=30) as answer:
                    assert answer.read() == text
            assert len(server._server._visitors) <= VISITORS_MAX
            names = [thread.name for thread in threading.enumerate() if "process_request" in thread.name]
            assert len(names) <= 2 * VISITORS_MAX
    finally:
        server.close()
    assert "Traceback" not in capfd.readouterr().err
