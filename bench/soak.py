"""A broker and a name server under mixed load for minutes: do memory, descriptors and delays stay bounded?

Senders, single and in batches; consumers that come and go every few seconds, with pulls that are held,
heartbeats and commits, some of them leaving without a word; queries by key and id. Log files are small and
are deleted as soon as they are full, so that everything the broker keeps about files comes and goes too.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import json
import os
import random
import re
import time
import urllib.request
from collections.abc import Callable, Coroutine
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.rig.ports import free_ports

from bench import machine
from bench.broker_peers import OURS, BenchBroker, anonymous_mib
from bench.results import FOLDER
from bench.rounds import median, percentile
from kerolox.client.admin.calls import AdminCalls, BrokerQueue
from kerolox.client.admin.lookups import Lookups
from kerolox.client.errors import NotFound
from kerolox.client.nameservers import NameServers
from kerolox.clock import SYSTEM_CLOCK
from kerolox.errors import KeroloxError
from kerolox.net.dialer import Dialer
from kerolox.protocol.batch import encode_batch
from kerolox.protocol.bodies.heartbeat import ConsumerData, ConsumeType, HeartbeatData, MessageModel
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.flags import PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION, PULL_SUSPEND
from kerolox.protocol.headers.heartbeat import UnregisterClientRequest
from kerolox.protocol.headers.offset import UpdateOffsetRequest
from kerolox.protocol.headers.pull import PullAnswer, PullRequest
from kerolox.protocol.headers.send import SendAnswer, SendRequestV2
from kerolox.protocol.message_id import UniqueKeys, read_offset_id
from kerolox.protocol.properties import pack
from kerolox.protocol.subscription import subscription

TOPICS = ("soak-0", "soak-1", "soak-2", "soak-3")
QUIET_TOPIC = "soak-quiet"  # its pulls are held for their whole time
GROUPS = ("soak-group-0", "soak-group-1", "soak-group-2")
HOLD_MS = 2000
BATCH = 16
GROWTH_MAX = 1.05  # of the memory, from the second quarter to the last
GROWTH_MIB_MAX = 2.0
LAG_S_MAX = 0.5
_PULLED = (
    0,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)
SETTINGS = {
    "mappedFileSizeCommitLog": 4 << 20,
    "mappedFileSizeConsumeQueue": 20 * 3000,
    "maxHashSlotNum": 10_000,
    "maxIndexNum": 40_000,
    "deleteWhen": ";".join(f"{hour:02d}" for hour in range(24)),
    "fileReservedTime": 0,  # a full file is old
    "cleanResourceInterval": 2000,
    "deleteCommitLogFilesInterval": 10,
}


@dataclass
class Sample:
    """What the processes held at one moment. Memory in MiB."""

    at_s: float
    rss: float
    anonymous: float
    nameserver_rss: float
    descriptors: int
    threads: int
    cpu_s: float
    lag_max_s: float  # the worst delay of the event loop since the sample before
    store_mib: float
    store_files: int
    sent: int
    pulled: int


class Load:
    """All the clients. One generator of random numbers, so that two runs do the same in about this order."""

    def __init__(self, nameserver: str, rate: int, seed: int) -> None:
        self.counts: collections.Counter[str] = collections.Counter()
        self.errors: collections.Counter[str] = collections.Counter()
        self._nameserver = nameserver
        self._rate = rate
        self._random = random.Random(seed)
        self._recent: collections.deque[tuple[str, str, str]] = collections.deque(maxlen=200)
        self._keys = UniqueKeys(
            bytes([127, 0, 0, 1]), os.getpid(), self._random.getrandbits(32), SYSTEM_CLOCK.wall_ms
        )

    def admin(self, dialer: Dialer) -> AdminCalls:
        return AdminCalls(NameServers([self._nameserver], dialer), dialer)

    async def run(self, seconds: float, consumers: int) -> None:
        async with Dialer() as dialer:
            admin = self.admin(dialer)
            self._queues = {topic: await admin.queues(topic) for topic in (*TOPICS, QUIET_TOPIC)}
            works = [
                self._every(0.02, lambda: self._send_some(admin)),
                self._every(0.1, lambda: self._send_batch(admin)),
                self._every(0.25, lambda: self._query(admin)),
                *(self._every(0.0, self._consumer) for _ in range(consumers)),
            ]
            tasks = [asyncio.create_task(work) for work in works]
            try:
                done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _every(self, pause_s: float, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while True:
            began_s = time.monotonic()
            try:
                await work()
            except KeroloxError as error:
                # Numbers differ from one to the next: the kind counts.
                self.errors[f"{type(error).__name__}: {re.sub(r'[0-9]+', '#', str(error))[:150]}"] += 1
                await asyncio.sleep(0.1)
            await asyncio.sleep(max(0.0, pause_s - (time.monotonic() - began_s)))

    # --- senders ------------------------------------------------------------------------------

    async def _send_some(self, admin: AdminCalls) -> None:
        await asyncio.gather(*(self._send(admin) for _ in range(max(1, self._rate // 50))))

    async def _send(self, admin: AdminCalls) -> None:
        topic, queue = self._choose()
        unique, key = self._keys.next(), f"order-{self._random.randrange(100_000)}"
        properties = pack({"UNIQ_KEY": unique, "KEYS": key, "TAGS": f"tag{self._random.randrange(4)}"})
        body = bytes(self._random.choice((20, 128, 128, 1024, 4000)))
        header = self._header(topic, queue, properties.decode())
        answer = await admin.ask(queue.address, RequestCode.SEND_MESSAGE_V2, header, body)
        self.counts["sent"] += 1
        if not self.counts["sent"] % 50:
            self._recent.append((topic, key, answer.header(SendAnswer).msg_id))

    async def _send_batch(self, admin: AdminCalls) -> None:
        topic, queue = self._choose()
        items = [(0, bytes(100), pack({"UNIQ_KEY": self._keys.next()})) for _ in range(BATCH)]
        header = self._header(topic, queue, "", batch=True)
        await admin.ask(queue.address, RequestCode.SEND_BATCH_MESSAGE, header, encode_batch(items))
        self.counts["sent"] += BATCH
        self.counts["batches"] += 1

    def _choose(self) -> tuple[str, BrokerQueue]:
        topic = self._random.choice(TOPICS)
        return topic, self._random.choice(self._queues[topic])

    def _header(
        self, topic: str, queue: BrokerQueue, properties: str, *, batch: bool = False
    ) -> SendRequestV2:
        return SendRequestV2(
            producer_group="soak-producer",
            topic=topic,
            default_topic="TBW102",
            default_topic_queue_nums=4,
            queue_id=queue.queue_id,
            sys_flag=0,
            born_timestamp=SYSTEM_CLOCK.wall_ms(),
            flag=0,
            properties=properties,
            reconsume_times=0,
            unit_mode=False,
            batch=batch,
            broker_name=queue.broker,
        )

    # --- queries ------------------------------------------------------------------------------

    async def _query(self, admin: AdminCalls) -> None:
        lookups = Lookups(admin)
        topic = self._random.choice(TOPICS)
        await admin.topic_stats(topic)
        await admin.progress(self._random.choice(GROUPS))
        await admin.route(topic)
        if self._recent:
            topic, key, message_id = self._recent[-1]
            self.counts["found by key"] += bool((await lookups.by_key(topic, key)).messages)
            await self._find(admin, lookups, topic, message_id)
        self.counts["queries"] += 1

    async def _find(self, admin: AdminCalls, lookups: Lookups, topic: str, message_id: str) -> None:
        try:
            self.counts["found by id"] += (await lookups.by_id(message_id)).topic == topic
        except NotFound:
            # Files are deleted within seconds here, this one perhaps before it was asked about.
            info = await admin.runtime_info(self._queues[topic][0].address)
            if read_offset_id(message_id).physical_offset >= int(info["commitLogMinOffset"]):
                raise
            self.counts["deleted before it was asked for"] += 1

    # --- consumers ----------------------------------------------------------------------------

    async def _consumer(self) -> None:
        """One life: a connection of its own, a few seconds of pulls, and an end, polite or not."""
        group, topic = self._random.choice(GROUPS), self._random.choice((*TOPICS, QUIET_TOPIC))
        life_s = self._random.uniform(2.0, 8.0)
        polite = self._random.random() < 0.5
        async with Dialer() as dialer:
            admin = self.admin(dialer)
            queues = self._queues[topic]
            client = f"127.0.0.1@{self._random.getrandbits(40)}"
            await self._heartbeat(admin, queues[0].address, client, group)
            pulls = [asyncio.create_task(self._pull_on(admin, queue, group, topic)) for queue in queues]
            try:
                done, _ = await asyncio.wait(pulls, timeout=life_s, return_when=asyncio.FIRST_EXCEPTION)
                for pull in done:
                    pull.result()
            finally:
                for pull in pulls:
                    pull.cancel()
                await asyncio.gather(*pulls, return_exceptions=True)
            if polite:
                asked = UnregisterClientRequest(client_id=client, consumer_group=group)
                await admin.ask(queues[0].address, RequestCode.UNREGISTER_CLIENT, asked)
        self.counts["consumers"] += 1

    async def _heartbeat(self, admin: AdminCalls, address: str, client: str, group: str) -> None:
        data = HeartbeatData(
            client_id=client,
            consumer_data_set=(
                ConsumerData(
                    group_name=group,
                    consume_type=ConsumeType.CONSUME_PASSIVELY,
                    message_model=MessageModel.CLUSTERING,
                    # All of them, whichever it pulls: members of a group must agree.
                    subscription_data_set=tuple(subscription(each, "*", 1) for each in self._queues),
                ),
            ),
        )
        await admin.ask(address, RequestCode.HEART_BEAT, body=data.encode())
        self.counts["heartbeats"] += 1

    async def _pull_on(self, admin: AdminCalls, queue: BrokerQueue, group: str, topic: str) -> None:
        # From just before the end: what is older may be deleted any moment, which is tried as well.
        offset = await admin.offset_at(queue.address, topic, queue.queue_id, -1)
        offset = 0 if self._random.random() < 0.1 else max(0, offset - 2000)
        while True:
            asked = PullRequest(
                consumer_group=group,
                topic=topic,
                queue_id=queue.queue_id,
                queue_offset=offset,
                max_msg_nums=32,
                sys_flag=PULL_COMMIT_OFFSET | PULL_SUSPEND | PULL_SUBSCRIPTION,
                commit_offset=offset,
                suspend_timeout_millis=HOLD_MS,
                sub_version=0,
                subscription="*",
                expression_type="TAG",
            )
            answer = await admin.ask(queue.address, RequestCode.PULL_MESSAGE, asked, ok=_PULLED)
            header = answer.header(PullAnswer)
            self.counts["pulls"] += 1
            if answer.code == 0:
                self.counts["pulled"] += header.next_begin_offset - offset
            offset = header.next_begin_offset
            if not self.counts["pulls"] % 10:
                commit = UpdateOffsetRequest(
                    consumer_group=group, topic=topic, queue_id=queue.queue_id, commit_offset=offset
                )
                await admin.ask(queue.address, RequestCode.UPDATE_CONSUMER_OFFSET, commit)
                self.counts["commits"] += 1


# --- looking --------------------------------------------------------------------------------------


def sample(broker: BenchBroker, metrics_port: int, began_s: float, load: Load) -> Sample:
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    lag = re.search(r"^kerolox_event_loop_lag_seconds_max\{.*\} (\S+)$", text, re.MULTILINE)
    assert lag is not None, "the broker does not tell how late its loop is"
    status = Path(f"/proc/{broker.pid}/status").read_text()
    threads = re.search(r"^Threads:\s*(\d+)", status, re.MULTILINE)
    sizes = _sizes(broker.home / "store")
    return Sample(
        at_s=round(time.monotonic() - began_s, 1),
        rss=round(machine.memory(broker.pid).rss, 2),
        anonymous=round(anonymous_mib(broker.pid), 2),
        nameserver_rss=round(machine.memory(broker.nameserver.process.pid).rss, 2),
        descriptors=len(os.listdir(f"/proc/{broker.pid}/fd")),
        threads=int(threads[1]) if threads else 0,
        cpu_s=round(machine.cpu_s(broker.pid), 2),
        lag_max_s=float(lag[1]),
        store_mib=round(sum(sizes) / 2**20, 1),
        store_files=len(sizes),
        sent=load.counts["sent"],
        pulled=load.counts["pulled"],
    )


def _sizes(folder: Path) -> list[int]:
    found = []
    for path in folder.rglob("*"):
        try:
            if path.is_file():
                found.append(path.stat().st_blocks * 512)
        except FileNotFoundError:  # deleted meanwhile
            continue
    return found


@dataclass
class Verdict:
    """Whether it would go on like this."""

    memory_before: float
    memory_after: float
    memory_mib_an_hour: float
    memory_flat: bool
    descriptors_max: int
    descriptors_bounded: bool
    lag_max_s: float
    lag_p95_s: float
    lag_bounded: bool
    store_mib_max: float
    errors: int

    @property
    def good(self) -> bool:
        return self.memory_flat and self.descriptors_bounded and self.lag_bounded and not self.errors


def judge(samples: list[Sample], errors: int) -> Verdict:
    """The first quarter is the warm-up; the second is compared with the last."""
    quarter = len(samples) // 4
    second, last = samples[quarter : 2 * quarter], samples[-quarter:]
    before, after = median([s.anonymous for s in second]), median([s.anonymous for s in last])
    early, late = (max(s.descriptors for s in part) for part in (samples[quarter : 2 * quarter], last))
    lags = [s.lag_max_s for s in samples[1:]]
    return Verdict(
        memory_before=before,
        memory_after=after,
        memory_mib_an_hour=round(_slope([(s.at_s, s.anonymous) for s in samples[quarter:]]) * 3600, 2),
        memory_flat=after <= before * GROWTH_MAX + GROWTH_MIB_MAX,
        descriptors_max=max(s.descriptors for s in samples),
        descriptors_bounded=late <= early * 1.2 + 10,
        lag_max_s=max(lags),
        lag_p95_s=round(percentile(lags, 0.95), 4),
        lag_bounded=percentile(lags, 0.95) <= LAG_S_MAX,
        store_mib_max=max(s.store_mib for s in samples),
        errors=errors,
    )


def _slope(points: list[tuple[float, float]]) -> float:
    """Least squares: how much y grows with x."""
    x_mean = sum(x for x, _ in points) / len(points)
    y_mean = sum(y for _, y in points) / len(points)
    spread = sum((x - x_mean) ** 2 for x, _ in points)
    return sum((x - x_mean) * (y - y_mean) for x, y in points) / spread if spread else 0.0


async def soak(
    broker: BenchBroker, metrics_port: int, load: Load, seconds: float, consumers: int
) -> list[Sample]:
    samples: list[Sample] = []
    began_s = time.monotonic()

    async def look() -> None:
        while True:
            samples.append(await asyncio.to_thread(sample, broker, metrics_port, began_s, load))
            if len(samples) % 10 == 1:
                print(samples[-1], flush=True)
            await asyncio.sleep(max(0.5, seconds / 120))

    looking = asyncio.create_task(look())
    try:
        await load.run(seconds, consumers)
    finally:
        looking.cancel()
        results = await asyncio.gather(looking, return_exceptions=True)
    if isinstance(results[0], Exception):
        raise results[0]
    return samples


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--rate", type=int, default=500, help="single messages a second")
    parser.add_argument("--consumers", type=int, default=8, help="at a time")
    parser.add_argument("--flush", choices=("ASYNC_FLUSH", "SYNC_FLUSH"), default="ASYNC_FLUSH")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=FOLDER / "soak.json")
    arguments = parser.parse_args(argv)
    facts = machine.describe()
    machine.show(facts)
    metrics_port = free_ports(1)[0]
    properties = {
        **SETTINGS,
        "metricsExporterType": "PROM",
        "metricsPromExporterPort": metrics_port,
        "flushDiskType": arguments.flush,
    }
    broker = BenchBroker(OURS, None, properties)
    try:
        for topic in (*TOPICS, QUIET_TOPIC):
            broker.create_topic(topic)
        load = Load(broker.nameserver.address, arguments.rate, arguments.seed)
        samples = asyncio.run(soak(broker, metrics_port, load, arguments.minutes * 60, arguments.consumers))
        alive = broker.process.poll() is None
        said = broker.tail()
    finally:
        broker.close()
    if len(samples) < 8:
        raise SystemExit(f"only {len(samples)} samples: too short to say anything")
    verdict = judge(samples, sum(load.errors.values()) + (not alive))
    document = {
        "machine": facts,
        "load": {"minutes": arguments.minutes, "rate": arguments.rate, "consumers": arguments.consumers,
                 "flush": arguments.flush, "seed": arguments.seed},
        "settings": {key: str(value) for key, value in SETTINGS.items()},
        "did": dict(load.counts),
        "errors": dict(load.errors),
        "verdict": asdict(verdict) | {"good": verdict.good},
        "samples": [asdict(each) for each in samples],
    }  # fmt: skip
    arguments.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(f"did: {dict(load.counts)}")
    print(f"errors: {dict(load.errors)}")
    print(
        f"memory {'flat' if verdict.memory_flat else 'GROWS'}: {verdict.memory_before:.1f} → "
        f"{verdict.memory_after:.1f} MiB, {verdict.memory_mib_an_hour:+.1f} MiB an hour\n"
        f"descriptors {'bounded' if verdict.descriptors_bounded else 'GROW'}: "
        f"{verdict.descriptors_max} at most\n"
        f"event loop {'bounded' if verdict.lag_bounded else 'LATE'}: at most "
        f"{verdict.lag_max_s * 1000:.0f} ms late, {verdict.lag_p95_s * 1000:.0f} ms in 95 of 100 samples\n"
        f"store {verdict.store_mib_max:.0f} MiB at most"
    )
    if "ERROR" in said or "WARNING" in said:
        print(f"the broker said:\n{said}")
    print(f"wrote {arguments.out}")
    return 0 if verdict.good else 1


if __name__ == "__main__":
    raise SystemExit(main())
