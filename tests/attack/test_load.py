"""A part of the load that ``make attack`` measures: honest requests are answered, and the broker stops."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator

from .load import WAIT_MS_MAX, LoadOutcome, exactly, load_all, under


def test_honest_clients_are_served_under_hostile_load() -> None:
    outcome = load_all(size=2, seconds=0.5)
    assert outcome.violations == []
    assert len(outcome.waits_ms) == 11
    assert outcome.log_bytes < 2_000_000  # 700 kB of a stranger made a line, and each of his requests another


@contextlib.contextmanager
def server(answer: bytes | None, after_s: float = 0.0) -> Iterator[int]:
    """A server that answers every frame alike and late, or closes the connection."""

    def serve(sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError):
            while True:
                exactly(sock, struct.unpack(">i", exactly(sock, 4))[0])
                time.sleep(after_s)
                if answer is None:
                    return
                sock.sendall(struct.pack(">i", len(answer)) + answer)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def felt(answer: bytes | None, after_s: float = 0.0) -> LoadOutcome:
    outcome = LoadOutcome()
    with server(answer, after_s) as port:
        outcome.waits_ms["nothing"] = under(port, "nothing", lambda port, until_s: None, 0.1, outcome)
    return outcome


def test_a_server_that_lets_honest_clients_wait_is_found() -> None:
    outcome = felt(b'{"code":0,"x":0}', after_s=2 * WAIT_MS_MAX / 1000)
    assert outcome.violations == []
    assert len(outcome.late()) == 1


def test_a_server_that_refuses_honest_clients_or_cuts_them_off_is_found() -> None:
    assert "were refused" in felt(b'{"code":2,"x":0}').violations[0]
    cut = felt(None)
    assert "was cut off" in cut.violations[0]
    assert len(cut.late()) == 1
