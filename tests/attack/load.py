"""Load by strangers and by a user without rights, on a broker of its own: how long honest clients wait.

The broker is a process with access control and few descriptors. Its attackers send what costs a server much
and proves nothing: headers in unusual spellings, long frames, floods of unsigned requests, connections that
say nothing. They are a process that keeps every connection full as long as the attack lasts, at the lowest
priority, for on a host of their own they would take no processor time of the broker's. Two honest clients,
processes too, send signed requests one at a time: one over a connection that it keeps, from the attackers'
address, one over a new connection each time, from another address. Each wait counts in full, also one that
ends after the attack. At the end the broker is told to stop while the longest hostile headers come.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import select
import selectors
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
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
STOP_S_MAX = 10.0
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


def be_honest(port: int, source: str) -> None:
    """Send one request after the other. For each line of stdin print the longest wait in ms, the number of
    refusals and that of requests since the last line. With a source each request has a new connection."""
    header = SendRequestV2(
        producer_group="p", topic="honest", default_topic="TBW102", default_topic_queue_nums=4, queue_id=0,
        sys_flag=0, born_timestamp=0, flag=0,
    )  # fmt: skip
    frame = signed(RequestCode.SEND_MESSAGE_V2, ADMIN, header, b"x" * 100)

    def connected() -> socket.socket:
        return socket.create_connection(("127.0.0.1", port), ANSWER_S, (source, 0) if source else None)

    sock, longest_ms, refused, count = connected(), 0.0, 0, 0
    print("ready", flush=True)
    while True:
        count += 1
        began_s = time.perf_counter()
        if source:
            sock.close()
            sock = connected()
        sock.sendall(frame)
        (length,) = struct.unpack(">i", exactly(sock, 4))
        refused += b'"code":0,' not in exactly(sock, length)
        longest_ms = max(longest_ms, (time.perf_counter() - began_s) * 1000)
        if select.select([sys.stdin], [], [], 0.002)[0]:
            if not sys.stdin.readline():
                return
            print(json.dumps([longest_ms, refused, count]), flush=True)
            longest_ms, refused, count = 0.0, 0, 0


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


class Flood:
    """Connections that always have bytes to send, and a new one for each that was closed."""

    def __init__(self, port: int, frame: bytes, connections: int) -> None:
        self._port = port
        self._bytes = memoryview(frame * max(1, 65_536 // len(frame)))
        self._connections = connections
        self._places: dict[socket.socket, int] = {}  # in the bytes
        self._selector = selectors.DefaultSelector()

    def go_on(self, until_s: float) -> None:
        while time.monotonic() < until_s:
            if len(self._places) < self._connections:
                self._connect()
            for key, events in self._selector.select(0.05):
                sock = key.fileobj
                assert isinstance(sock, socket.socket)
                try:
                    if events & selectors.EVENT_READ and not sock.recv(65_536):
                        raise ConnectionError
                    if events & selectors.EVENT_WRITE:
                        sent = sock.send(self._bytes[self._places[sock] :])
                        self._places[sock] = (self._places[sock] + sent) % len(self._bytes)
                except BlockingIOError:
                    pass
                except OSError:
                    self._selector.unregister(sock)
                    del self._places[sock]
                    sock.close()
        for sock in self._places:
            sock.close()
        self._selector.close()

    def _connect(self) -> None:
        with contextlib.suppress(OSError):
            sock = socket.create_connection(("127.0.0.1", self._port), 1.0)
            sock.setblocking(False)
            self._selector.register(sock, selectors.EVENT_READ | selectors.EVENT_WRITE)
            self._places[sock] = 0


def be_hostile(port: int, size: int) -> None:
    """Carry out the attack that each line of stdin tells, with its seconds."""
    os.nice(19)
    print("ready", flush=True)
    for line in sys.stdin:
        number, seconds = line.split()
        attacks(size)[int(number)].carry_out(port, time.monotonic() + float(seconds))
        print("done", flush=True)


def silent(port: int, count: int, until_s: float) -> None:
    with contextlib.ExitStack() as kept:
        with contextlib.suppress(OSError):
            for _ in range(count):
                kept.enter_context(socket.create_connection(("127.0.0.1", port), 5.0))
        time.sleep(max(0.0, until_s - time.monotonic()))


@dataclass(frozen=True)
class Attack:
    name: str
    carry_out: Callable[[int, float], None]  # until a time


def attacks(size: int) -> list[Attack]:
    """``size``: six connections for each flood, and 30 that are silent."""

    def floods(name: str, frame: bytes) -> Attack:
        return Attack(name, lambda port, until_s: Flood(port, frame, min(300, 6 * size)).go_on(until_s))

    guessed = Credentials("admin", "guessed")
    text = b"{clientID:'c',x:[" + b"'\\n'," * 700 + b"]}"
    return [
        Attack("nobody attacks", lambda port, until_s: time.sleep(max(0.0, until_s - time.monotonic()))),
        floods("headers of 619 kB in an unusual spelling", dialect_header(619_000)),
        floods("headers of 30 kB in an unusual spelling", dialect_header(30_000)),
        floods("headers of 3.9 kB in an unusual spelling", dialect_header(3_900)),
        floods("headers of 900 B in an unusual spelling", dialect_header(900)),
        floods("headers of 900 kB with 75,000 fields", strict_header(900_000)),
        floods("binary headers of 900 kB with 90,000 fields", binary_header(900_000)),
        floods("700 kB of control characters", control_characters()),
        floods("garbage", bytes(100)),
        floods("empty headers", struct.pack(">II", 4, 0)),
        floods("unsigned requests", signed(RequestCode.GET_BROKER_CONFIG, None)),
        floods("wrong signatures", signed(RequestCode.HEART_BEAT, guessed)),
        floods("wrong signatures of 1 MiB", signed(RequestCode.HEART_BEAT, guessed, None, bytes(MIB - 100))),
        floods("wrong signatures of 15 MiB", signed(RequestCode.HEART_BEAT, guessed, None, bytes(15 * MIB))),
        floods("unsigned bodies in an unusual spelling", dialect_body(None)),
        floods("bodies in an unusual spelling by a user without rights", dialect_body(MALLORY)),
        floods("short ones of these", signed(RequestCode.HEART_BEAT, MALLORY, None, text)),
        Attack("silent connections", lambda port, until_s: silent(port, 30 * size, until_s)),
    ]


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
            self.process.communicate(timeout=STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
        return time.monotonic() - began_s


class Helper:
    """A process that does what lines of its stdin tell, and says so."""

    def __init__(self, script: str) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"from tests.attack import load; load.{script}"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True,
        )  # fmt: skip
        self._heard()

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def ask(self, line: str) -> str:
        """Tell it a line, and return its answer."""
        self.tell(line)
        return self._heard()

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _heard(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise AssertionError(f"{self._process.args!r} ended with {self._process.wait()}")
        return line


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
            honest = [Helper(f"be_honest({broker.port}, {source!r})") for source in ("", "127.0.0.2")]
            hostile = Helper(f"be_hostile({broker.port}, {size})")
            for number, attack in enumerate(attacks(size)):
                hostile.ask(f"{number} {seconds}")
                found = [json.loads(client.ask("")) for client in honest]
                wait_ms = outcome.waits_ms[attack.name] = round(max(one[0] for one in found), 1)
                refused = sum(one[1] for one in found)
                if refused:
                    outcome.violations.append(f"{attack.name}: {refused} honest requests were refused")
                progress(f"{attack.name}: an honest client waited {wait_ms:.0f} ms at most")
            for client in honest:
                client.end()
            hostile.tell(f"1 {seconds + STOP_S_MAX}")
            time.sleep(min(1.0, seconds))
            outcome.stop_s = round(broker.stop(), 2)
            hostile.end()
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
