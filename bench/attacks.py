"""What others feel while somebody attacks: latencies of an honest client, memory of the server.

A broker and a name server, each a process of its own, are attacked in ways that once stopped them:
conditions, heartbeats, locks, offsets, frames and registrations that are larger than any honest one.
Meanwhile a client in a process of its own sends messages or asks for routes, one after the other. Other
sources of kerolox to compare with: ``python -m bench.attacks --source ../before/src --out before.json``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.rig.ports import free_ports

from bench import machine
from bench.results import FOLDER, ROOT, Table, number
from bench.rounds import percentile
from kerolox.errors import KeroloxError
from kerolox.net.dialer import Dialer
from kerolox.protocol.bodies.body import MessageQueue
from kerolox.protocol.bodies.heartbeat import ConsumerData, HeartbeatData
from kerolox.protocol.bodies.members import LockRequest
from kerolox.protocol.bodies.registration import Registration, encode_registration
from kerolox.protocol.bodies.topics import DataVersion, TopicConfig, TopicConfigTable
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import Command, request
from kerolox.protocol.flags import PULL_SUBSCRIPTION, PULL_SUSPEND
from kerolox.protocol.headers.offset import UpdateOffsetRequest
from kerolox.protocol.headers.pull import PullRequest
from kerolox.protocol.headers.registration import RegisterBrokerRequest
from kerolox.protocol.headers.route import RouteRequest
from kerolox.protocol.headers.send import SendRequestV2

TOPIC = "honest"
ANSWER_S = 90.0  # an attacker waits so long for an answer
LEAST_S = 3.0  # each attack is watched for so long at least
MIB = 1 << 20


# --- the honest client -----------------------------------------------------------------------------------


def watch(port: int, what: str) -> None:
    """Ask again and again until SIGTERM; then print how long each took, in ms."""
    header = (
        RouteRequest(topic=TOPIC)
        if what == "route"
        else SendRequestV2(
            producer_group="p", topic=TOPIC, default_topic="TBW102", default_topic_queue_nums=4, queue_id=0,
            sys_flag=0, born_timestamp=0, flag=0,
        )
    )  # fmt: skip
    code = RequestCode.GET_ROUTEINFO_BY_TOPIC if what == "route" else RequestCode.SEND_MESSAGE_V2
    frame = request(code, header, b"" if what == "route" else b"x" * 100, opaque=1).encode()
    took_ms: list[float] = []
    ended = False

    def end(*_: object) -> None:
        nonlocal ended
        ended = True

    signal.signal(signal.SIGTERM, end)
    sock = machine.connect_when_open(port)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.settimeout(ANSWER_S)
    while not ended:
        began_s = time.perf_counter()
        sock.sendall(frame)
        left = struct.unpack(">i", _exactly(sock, 4))[0]
        _exactly(sock, left)
        took_ms.append((time.perf_counter() - began_s) * 1000)
        time.sleep(0.002)
    print(json.dumps(took_ms), flush=True)


def _exactly(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        try:
            more = sock.recv(count - len(data))
        except InterruptedError:
            continue
        if not more:
            raise ConnectionError("the server closed the connection of an honest client")
        data += more
    return data


# --- servers -----------------------------------------------------------------------------------------------


class Attacked:
    """A server process."""

    def __init__(self, role: str, source: Path, settings: dict[str, object]) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="kerolox-attacks-", ignore_cleanup_errors=True)
        home = Path(self.folder.name)
        config = home / "server.conf"
        config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()), encoding="utf-8")
        self.port = int(str(settings["listenPort"]))
        self.address = f"127.0.0.1:{self.port}"
        environment = {**os.environ, "PYTHONPATH": str(source)}
        with (home / "output.txt").open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "kerolox", role, "-c", str(config)],
                stdout=output, stderr=output, cwd=home, env=environment,
            )  # fmt: skip
        machine.connect_when_open(self.port, self.process).close()

    @property
    def rss_mib(self) -> float:
        return machine.memory(self.process.pid).rss

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.folder.cleanup()


@dataclass
class Felt:
    """What an attack did to others."""

    attack: str
    heard: str  # by the attacker
    attack_s: float
    requests: int  # of the honest client
    p50_ms: float
    p99_ms: float
    max_ms: float
    memory_before_mib: float
    memory_most_mib: float


Attack = Callable[[Attacked], Awaitable[str]]


def start_watching(server: Attacked, what: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "bench.attacks", "--watch", what, "--port", str(server.port)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT)


async def measure(name: str, server: Attacked, what: str, attack: Attack) -> Felt:
    before = server.rss_mib
    watcher = start_watching(server, what)
    await asyncio.sleep(1.0)
    most = before
    ended = False

    async def look() -> None:
        nonlocal most
        while not ended:
            most = max(most, server.rss_mib)
            await asyncio.sleep(0.05)

    looking = asyncio.ensure_future(look())
    began_s = time.monotonic()
    try:
        heard = await attack(server)
    except (KeroloxError, OSError, TimeoutError) as error:
        heard = f"{type(error).__name__}: {error}"
    took_s = time.monotonic() - began_s
    await asyncio.sleep(max(0.0, LEAST_S - took_s))
    watcher.terminate()
    out, _ = await asyncio.to_thread(watcher.communicate)
    ended = True
    await looking
    took_ms = sorted(json.loads(out)) if out else [float("nan")]
    felt = Felt(
        attack=name,
        heard=heard[:160],
        attack_s=round(took_s, 2),
        requests=len(took_ms),
        p50_ms=round(percentile(took_ms, 0.5), 2),
        p99_ms=round(percentile(took_ms, 0.99), 2),
        max_ms=round(took_ms[-1], 2),
        memory_before_mib=round(before),
        memory_most_mib=round(most),
    )
    print(
        f"{name:44} p50 {felt.p50_ms:8.2f}  p99 {felt.p99_ms:9.2f}  max {felt.max_ms:9.2f} ms  "
        f"memory {felt.memory_before_mib:5.0f} → {felt.memory_most_mib:5.0f} MiB  heard: {heard[:80]!r}",
        flush=True,
    )
    return felt


def said(answer: Command) -> str:
    return f"code {answer.code}" + (f": {answer.remark}" if answer.remark else "")


# --- attacks on a broker -----------------------------------------------------------------------------------


def pull(condition: str | None = None, **fields: object) -> PullRequest:
    values: dict[str, object] = {
        "consumer_group": "attackers",
        "topic": TOPIC,
        "queue_id": 0,
        "queue_offset": 0,
        "max_msg_nums": 32,
        "sys_flag": PULL_SUBSCRIPTION,
        "commit_offset": 0,
        "suspend_timeout_millis": 15_000,
        "sub_version": 0,
        "subscription": "*" if condition is None else condition,
        "expression_type": "TAG" if condition is None else "SQL92",
    }
    return PullRequest(**{**values, **fields})  # type: ignore[arg-type]


async def call(server: Attacked, code: int, header: object = None, body: bytes = b"") -> Command:
    async with Dialer() as dialer:
        return await dialer.call(server.address, code, header, body, timeout_s=ANSWER_S)  # type: ignore[arg-type]


async def nothing(server: Attacked) -> str:
    return "-"


async def dashes(server: Attacked) -> str:
    """16,000 of them: 2.3 s of the loop, once. 50,000 took minutes."""
    return said(await call(server, RequestCode.PULL_MESSAGE, pull("a > " + "-" * 16_000)))


async def long_conditions(server: Attacked) -> str:
    answer: Command | None = None
    async with Dialer() as dialer:
        for number_of in range(60):
            listed = ",".join(f"'{number_of}-{item}'" for item in range(5500))
            header = pull(f"a IN ({listed})")
            answer = await dialer.call(server.address, RequestCode.PULL_MESSAGE, header, timeout_s=ANSWER_S)
    assert answer is not None
    return said(answer)


async def many_terms(server: Attacked) -> str:
    """Each message is a new question, of a thousand comparisons."""
    condition = " OR ".join(f"UNIQ_KEY = '{number_of}'" for number_of in range(1000))
    answer: Command | None = None
    async with Dialer() as dialer:
        for turn in range(20):
            header = pull(f"{condition} OR b = {turn}", max_msg_nums=800)
            answer = await dialer.call(server.address, RequestCode.PULL_MESSAGE, header, timeout_s=ANSWER_S)
    assert answer is not None
    return said(answer)


def heartbeat(count: int, first: int = 0) -> bytes:
    groups = tuple(ConsumerData(group_name=f"group-{number_of}") for number_of in range(first, first + count))
    return HeartbeatData(client_id="attacker", consumer_data_set=groups).encode()


async def large_heartbeat(server: Attacked) -> str:
    return said(await call(server, RequestCode.HEART_BEAT, None, heartbeat(100_000)))


async def many_heartbeats(server: Attacked) -> str:
    """The largest that is taken, from one connection after the other."""
    heard = ""
    for turn in range(20):
        body = heartbeat(500, 1_000_000 + turn * 500)
        heard = said(await call(server, RequestCode.HEART_BEAT, None, body))
    return heard


async def locks(server: Attacked) -> str:
    heard = ""
    async with Dialer() as dialer:
        for turn in range(60):
            queues = frozenset(MessageQueue(f"t{turn}-{item}", "b", item) for item in range(10_000))
            body = LockRequest(consumer_group="g", client_id="c", mq_set=queues).encode()
            heard = said(
                await dialer.call(server.address, RequestCode.LOCK_BATCH_MQ, None, body, timeout_s=ANSWER_S)
            )
    return heard


async def offsets(server: Attacked) -> str:
    heard = ""
    async with Dialer() as dialer:
        await dialer.call(server.address, RequestCode.PULL_MESSAGE, pull(), timeout_s=ANSWER_S)
        for first in range(0, 30_000, 500):
            answers = await asyncio.gather(
                *(
                    dialer.call(
                        server.address,
                        RequestCode.UPDATE_CONSUMER_OFFSET,
                        UpdateOffsetRequest(
                            consumer_group="attackers", topic=TOPIC, queue_id=queue_id, commit_offset=1 << 60
                        ),
                        timeout_s=ANSWER_S,
                    )
                    for queue_id in range(first, first + 500)
                )
            )
            heard = said(answers[-1])
    return heard


async def unfinished_frames(server: Attacked) -> str:
    """A hundred connections that send 15 MiB of a frame of 16, and wait."""
    piece = struct.pack(">iI", 16 * MIB - 8, 100) + bytes(15 * MIB)
    socks: list[socket.socket] = []

    def send() -> int:
        closed = 0
        for _ in range(100):
            sock = socket.create_connection(("127.0.0.1", server.port), 30)
            try:
                sock.sendall(piece)
            except OSError:
                closed += 1
            socks.append(sock)
        time.sleep(2)
        for sock in socks:
            sock.setblocking(False)
            try:
                closed += sock.recv(1) == b""
            except BlockingIOError:
                pass
            except OSError:
                closed += 1
            sock.close()
        return closed

    return f"{await asyncio.to_thread(send)} of 100 connections closed"


async def dialect_json(server: Attacked) -> str:
    body = b"{clientID:'c',x:[" + b"'\\n'," * 1_500_000 + b"]}"
    return said(await call(server, RequestCode.HEART_BEAT, None, body))


async def misfit_json(server: Attacked) -> str:
    body = b'{"clientID":"c","consumerDataSet":[' + b"1," * 3_000_000 + b"1]}"
    return said(await call(server, RequestCode.HEART_BEAT, None, body))


async def held_pulls(server: Attacked) -> str:
    """50,000 pulls at the end of a queue, to be held as long as one can ask for."""
    async with Dialer() as dialer:
        first = await dialer.call(server.address, RequestCode.PULL_MESSAGE, pull(queue_offset=1 << 50))
        end = int(first.fields["maxOffset"]) + 1_000_000
        frames = b"".join(
            request(
                RequestCode.PULL_MESSAGE,
                pull(
                    queue_id=3, queue_offset=0, sys_flag=PULL_SUBSCRIPTION | PULL_SUSPEND,
                    suspend_timeout_millis=1 << 60,
                ),
                opaque=number_of,
            ).encode()
            for number_of in range(50_000)
        )  # fmt: skip

    def send() -> str:
        with socket.create_connection(("127.0.0.1", server.port), 30) as sock:
            sock.sendall(frames)
            time.sleep(2)
        return f"sent, queue ends at {end - 1_000_000}"

    return await asyncio.to_thread(send)


# --- attacks on a name server ------------------------------------------------------------------------------


def registration(count: int, *, compressed: bool = True) -> tuple[RegisterBrokerRequest, bytes]:
    topics = {
        name: TopicConfig(topic_name=name, read_queue_nums=4, write_queue_nums=4)
        for name in (f"t{number_of}" for number_of in range(count))
    }
    table = TopicConfigTable(data_version=DataVersion(counter=1, timestamp=1), topic_config_table=topics)
    body = encode_registration(Registration(topic_config_serialize_wrapper=table), compressed=False)
    if compressed:
        body = zlib.compress(_packed(table), 1)
    header = RegisterBrokerRequest(
        broker_name=f"attacker-{count}", broker_addr="10.0.0.66:10911", cluster_name="c", broker_id=0,
        compressed=compressed,
    )  # fmt: skip
    return header, body


def _packed(table: TopicConfigTable) -> bytes:
    raw = encode_registration(Registration(topic_config_serialize_wrapper=table), compressed=True)
    return zlib.decompress(raw)


def registering(count: int, *, compressed: bool = True) -> Attack:
    header, body = registration(count, compressed=compressed)

    async def attack(server: Attacked) -> str:
        heard = said(await call(server, RequestCode.REGISTER_BROKER, header, body))
        await asyncio.sleep(1)  # the connection is closed: its topics go
        return heard

    return attack


# --- all of it ---------------------------------------------------------------------------------------------


async def attack_all(source: Path) -> dict[str, list[Felt]]:
    broker_port, vip_port, ha_port, names_port = free_ports(4)
    found: dict[str, list[Felt]] = {"broker": [], "name server": []}
    with tempfile.TemporaryDirectory(prefix="kerolox-attacks-store-") as store:
        broker = Attacked("broker", source, {
            "listenPort": broker_port, "vipPort": vip_port, "haListenPort": ha_port, "brokerName": "attacked",
            "brokerIP1": "127.0.0.1", "storePathRootDir": store, "enablePropertyFilter": "true",
            "mappedFileSizeCommitLog": 64 * MIB, "maxHashSlotNum": 10_000, "maxIndexNum": 40_000,
            "diskSpaceFreeEnough": 64 * MIB,
        })  # fmt: skip
        try:
            attacks: list[tuple[str, Attack]] = [
                ("nobody attacks", nothing),
                ("a condition of 16,000 dashes", dashes),
                ("60 conditions of 64 kB", long_conditions),
                ("20 pulls by 1,000 comparisons", many_terms),
                ("a heartbeat of 100,000 groups", large_heartbeat),
                ("20 heartbeats of 500 groups", many_heartbeats),
                ("locks of 600,000 unknown queues", locks),
                ("30,000 offsets that cannot be", offsets),
                ("50,000 held pulls of one connection", held_pulls),
                ("7 MB of dialect JSON", dialect_json),
                ("6 MB of JSON that does not fit", misfit_json),
                ("100 connections with 15 MiB of a frame", unfinished_frames),
            ]
            for name, attack in attacks:
                found["broker"].append(await measure(name, broker, "send", attack))
        finally:
            broker.stop()
    home = tempfile.mkdtemp(prefix="kerolox-attacks-")
    names = Attacked("nameserver", source, {"listenPort": names_port, "kvConfigPath": f"{home}/kv.json"})
    try:
        async with Dialer() as honest:
            small = RegisterBrokerRequest(
                broker_name="honest", broker_addr="10.0.0.1:10911", cluster_name="c", broker_id=0
            )
            topics = {name: TopicConfig(topic_name=name) for name in (TOPIC, "other")}
            told = TopicConfigTable(data_version=DataVersion(counter=1), topic_config_table=topics)
            body = encode_registration(Registration(topic_config_serialize_wrapper=told))
            await honest.call(names.address, RequestCode.REGISTER_BROKER, small, body)
            attacks = [
                ("nobody attacks", nothing),
                ("a registration of 50,000 topics, as JSON", registering(50_000, compressed=False)),
                ("a registration of 150,000 topics", registering(150_000)),
                ("a registration of 700,000 topics", registering(700_000)),
            ]
            for name, attack in attacks:
                found["name server"].append(await measure(name, names, "route", attack))
    finally:
        names.stop()
    return found


def table_of(role: str, rows: list[Felt]) -> Table:
    return Table(
        title=f"An honest client of a {role} during attacks",
        columns=["attack", "p50 ms", "p99 ms", "longest ms", "memory MiB", "the attacker hears"],
        rows=[
            [
                felt.attack, number(felt.p50_ms), number(felt.p99_ms), number(felt.max_ms),
                f"{felt.memory_before_mib:.0f} → {felt.memory_most_mib:.0f}", felt.heard,
            ]
            for felt in rows
        ],
    )  # fmt: skip


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.attacks", description=__doc__)
    parser.add_argument("--source", type=Path, default=ROOT / "src", help="sources of the servers")
    parser.add_argument("--out", type=Path, default=FOLDER / "attacks.json")
    parser.add_argument("--watch", choices=("send", "route"), help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.watch:
        watch(arguments.port, arguments.watch)
        return
    facts = machine.describe()
    machine.show(facts)
    found = asyncio.run(attack_all(arguments.source.resolve()))
    for role, rows in found.items():
        print(table_of(role, rows).markdown())
    facts["taken by other guests of the host"] = machine.stolen()
    document = {"machine": facts} | {role: [asdict(felt) for felt in rows] for role, rows in found.items()}
    arguments.out.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
