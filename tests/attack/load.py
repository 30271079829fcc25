"""Load by strangers and by a user without rights, on a broker of its own: how long an honest client waits.

The broker is a process with access control and few descriptors. Its attackers come from this host and send
what costs a server much and proves nothing: headers in unusual spellings, long frames, floods of unsigned
requests, connections that say nothing. An honest client in a process of its own sends signed requests, one at
a time, and connects anew now and then. At the end the broker is told to stop with hostile frames queued.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from kerolox.access.book import Book
from kerolox.access.book_file import save_book
from kerolox.net.signing import Credentials
from kerolox.protocol.bodies import access as bodies
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import request
from kerolox.protocol.frame import BINARY, JSON, pack_frame
from kerolox.protocol.headers.send import SendRequestV2
from kerolox.protocol.signature import sign
from kerolox.testing.access import ADMIN, INNER

FILES = 1024  # that the broker may open: 512 connections on a port
SECONDS = 5.0  # of one attack
ANSWER_S = 30.0
STOP_S_MAX = 30.0
MALLORY = Credentials("mallory", "a password of theirs")
MIB = 1 << 20


@dataclass
class LoadOutcome:
    """What an honest client felt."""

    waits_ms: dict[str, float] = field(default_factory=dict)  # attack → the longest wait
    log_bytes: int = 0
    stop_s: float = 0.0
    violations: list[str] = field(default_factory=list)


# --- the honest client, a process of its own ----------------------------------------------------------


def signed(
    code: int, own: Credentials | None, header: SendRequestV2 | None = None, body: bytes = b""
) -> bytes:
    command = request(code, header, body, opaque=7)
    if own is not None:
        command.fields.update(sign(command.fields, body, own.access_key, own.secret_key))
    return command.encode()


def be_honest(port: int) -> None:
    """Send until SIGTERM, then print the longest wait in ms, the number of refusals, and that of requests."""
    header = SendRequestV2(
        producer_group="p", topic="honest", default_topic="TBW102", default_topic_queue_nums=4, queue_id=0,
        sys_flag=0, born_timestamp=0, flag=0,
    )  # fmt: skip
    frame = signed(RequestCode.SEND_MESSAGE_V2, ADMIN, header, b"x" * 100)
    ended, longest_ms, refused, count = threading.Event(), 0.0, 0, 0
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    kept = socket.create_connection(("127.0.0.1", port), ANSWER_S)
    print("ready", flush=True)
    while not ended.is_set():
        count += 1
        began_s = time.perf_counter()
        sock = socket.create_connection(("127.0.0.1", port), ANSWER_S) if count % 50 == 0 else kept
        sock.settimeout(ANSWER_S)
        sock.sendall(frame)
        (length,) = struct.unpack(">i", exactly(sock, 4))
        refused += b'"code":0,' not in exactly(sock, length)
        longest_ms = max(longest_ms, (time.perf_counter() - began_s) * 1000)
        if sock is not kept:
            sock.close()
        time.sleep(0.002)
    print(json.dumps([longest_ms, refused, count]), flush=True)


def exactly(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = sock.recv(count - len(data))
        if not more:
            raise ConnectionError("the broker closed the connection of an honest client")
        data += more
    return data


# --- attacks ------------------------------------------------------------------------------------------


def dialect_header(size_bytes: int) -> bytes:
    fields = b",".join(b"k%d:1" % (number % 10) for number in range(size_bytes // 5))
    return pack_frame(JSON, b"{code:26,opaque:1,extFields:{%b}}" % fields)


def strict_header(size_bytes: int) -> bytes:
    fields = b",".join(b'"%d":"1"' % number for number in range(size_bytes // 12))
    return pack_frame(JSON, b'{"code":26,"opaque":1,"extFields":{%b}}' % fields)


def binary_header(size_bytes: int) -> bytes:
    entry = struct.pack(">h", 3) + b"key" + struct.pack(">i", 1) + b"v"
    run = entry * (size_bytes // len(entry))
    head = struct.pack(">hBhiii", 26, 0, 0, 1, 0, 0) + struct.pack(">i", len(run))
    return pack_frame(BINARY, head + run)


def control_characters() -> bytes:
    return pack_frame(JSON, b'{"code":26,"opaque":"' + b"\\u0001" * 116_000 + b'"}')


def dialect_body(own: Credentials | None) -> bytes:
    return signed(RequestCode.HEART_BEAT, own, None, b"{clientID:'c',x:[" + b"'\\n'," * 200_000 + b"]}")


def flood(port: int, frame: bytes, connections: int, times: int, until_s: float) -> None:
    """Send a frame so many times on each of so many connections; connect anew where one is closed."""
    left = [times] * connections
    while any(left) and time.monotonic() < until_s:
        for number in range(connections):
            if not left[number] or time.monotonic() >= until_s:
                continue
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5.0) as sock:
                sock.settimeout(0.5)
                sock.sendall(frame * min(left[number], 20))
            left[number] -= min(left[number], 20)


def silent(port: int, count: int, until_s: float) -> None:
    with contextlib.ExitStack() as kept:
        with contextlib.suppress(OSError):
            for _ in range(count):
                kept.enter_context(socket.create_connection(("127.0.0.1", port), 5.0))
        time.sleep(max(0.0, until_s - time.monotonic()))


def attacks(size: int) -> Iterable[tuple[str, Callable[[int, float], None]]]:
    """``size``: how often each frame is sent, on how many connections."""
    many = min(60, 6 * size)

    def sending(frame: bytes, times: int) -> Callable[[int, float], None]:
        return lambda port, until_s: flood(port, frame, many, times, until_s)

    yield "nobody attacks", lambda port, until_s: None
    yield "headers of 619 kB in an unusual spelling", sending(dialect_header(619_000), 2)
    yield "headers of 30 kB in an unusual spelling", sending(dialect_header(30_000), 4 * size)
    yield "headers of 900 kB with 75,000 fields", sending(strict_header(900_000), 2)
    yield "binary headers of 900 kB with 90,000 fields", sending(binary_header(900_000), 2)
    yield "700 kB of control characters", sending(control_characters(), 2)
    yield "unsigned requests", sending(signed(RequestCode.GET_BROKER_CONFIG, None), 100 * size)
    yield (
        "wrong signatures of 1 MiB",
        sending(signed(RequestCode.HEART_BEAT, Credentials("admin", "guessed"), None, b" " * (MIB - 100)), 2),
    )
    yield "unsigned bodies in an unusual spelling", sending(dialect_body(None), 2)
    yield "bodies in an unusual spelling by a user without rights", sending(dialect_body(MALLORY), 2)
    yield "silent connections", lambda port, until_s: silent(port, 300 * size, until_s)


# --- the broker ---------------------------------------------------------------------------------------


class Broker:
    """A broker process with access control."""

    def __init__(self, place: Path) -> None:
        book = Book()
        for own in (ADMIN, INNER):
            book.ensure_super(own.access_key, own.secret_key)
        book.create_user(bodies.User(username=MALLORY.access_key, password=MALLORY.secret_key))
        save_book(place / "access.json", book)
        inner = json.dumps({"accessKey": INNER.access_key, "secretKey": INNER.secret_key})
        settings = {
            "bindAddress": "127.0.0.1", "listenPort": 0, "haListenPort": 0,
            "storePathRootDir": place / "store", "accessPath": place / "access.json",
            "authenticationEnabled": "true", "authorizationEnabled": "true",
            "innerClientAuthenticationCredentials": inner, "mappedFileSizeCommitLog": 16 * MIB,
            "maxHashSlotNum": 10_000, "maxIndexNum": 40_000, "diskSpaceFreeEnough": 16 * MIB,
        }  # fmt: skip
        config = place / "broker.conf"
        config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()), encoding="utf-8")
        self.log = place / "log.txt"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "kerolox", "broker", "-c", str(config)],
                stdout=subprocess.PIPE, stderr=log, cwd=place, preexec_fn=_few_files,
            )  # fmt: skip
        assert self.process.stdout is not None
        ready = self.process.stdout.readline().decode()
        found = re.search(r"ready on 127\.0\.0\.1:(\d+)", ready)
        assert found is not None, f"{ready}{self.log.read_text()[-2000:]}"
        self.port = int(found[1])

    def stop(self) -> float:
        """Tell it to stop, and return how long that took."""
        began_s = time.monotonic()
        self.process.terminate()
        try:
            self.process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        return time.monotonic() - began_s


def _few_files() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES))


def load_all(
    *, size: int = 10, seconds: float = SECONDS, progress: Callable[[str], None] = lambda text: None
) -> LoadOutcome:
    """Carry out all attacks, one after the other."""
    outcome = LoadOutcome()
    with tempfile.TemporaryDirectory(prefix="kerolox-load-") as place:
        broker = Broker(Path(place))
        try:
            for name, attack in attacks(size):
                outcome.waits_ms[name] = _under(broker.port, name, attack, seconds, outcome)
                progress(f"{name}: an honest client waited {outcome.waits_ms[name]:.0f} ms at most")
            costly = dialect_body(MALLORY) * 4
            queued = [socket.create_connection(("127.0.0.1", broker.port), 5.0) for _ in range(8)]
            for sock in queued:
                sock.settimeout(0.5)
                with contextlib.suppress(OSError):
                    sock.sendall(costly)
            outcome.stop_s = round(broker.stop(), 2)
            for sock in queued:
                sock.close()
        finally:
            if broker.process.poll() is None:
                broker.process.kill()
                broker.process.wait()
        if broker.process.returncode:
            outcome.violations.append(
                f"the broker ended with {broker.process.returncode} {outcome.stop_s} s after SIGTERM"
            )
        outcome.log_bytes = broker.log.stat().st_size
        if "\x01" in broker.log.read_text(errors="replace"):
            outcome.violations.append("the log has control characters of a stranger")
    return outcome


def _under(
    port: int, name: str, attack: Callable[[int, float], None], seconds: float, outcome: LoadOutcome
) -> float:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    client = subprocess.Popen(
        [sys.executable, "-c", f"from tests.attack.load import be_honest; be_honest({port})"],
        stdout=subprocess.PIPE, env=environment,
    )  # fmt: skip
    assert client.stdout is not None
    if client.stdout.readline() != b"ready\n":
        client.wait()
        outcome.violations.append(f"{name}: an honest client could not connect")
        return float("inf")
    began_s = time.monotonic()
    attack(port, began_s + seconds)
    time.sleep(max(0.0, began_s + seconds - time.monotonic()))
    client.terminate()
    out, _ = client.communicate(timeout=2 * ANSWER_S)
    if client.returncode or not out:
        outcome.violations.append(f"{name}: an honest client was cut off or waited for {ANSWER_S:g} s")
        return float("inf")
    longest_ms, refused, count = json.loads(out)
    if refused:
        outcome.violations.append(f"{name}: {refused} of {count} honest requests were refused")
    return round(float(longest_ms), 1)
