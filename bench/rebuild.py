"""``make rebuild``: queues and index of a store of Apache's broker, made again on Spark.

Apache's broker writes a store and stops. Its queues and index are put aside. They are made again on this
machine's cores, on a cluster of two workers, and by the one process of ``kerolox store repair``; each result
is compared with Apache's own, byte by byte. What Spark made takes its place, and both brokers open it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.rig.ports import free_ports
from tests.spark.standalone import driver_settings, spark_cluster

from bench import machine, report
from bench.rebuild_store import DEFAULT_SIZES, TOPICS, ApacheStore
from bench.results import FOLDER, Result, Table, number
from kerolox.cli.nameservers import run_admin
from kerolox.client.admin.calls import AdminCalls, BrokerQueue
from kerolox.client.admin.lookups import Lookups
from kerolox.errors import KeroloxError

GIB = 1 << 30
READ_BYTES = 8 << 20
START_S = 300.0
PARTS = ("consumequeue", "index")
SINGLE, LOCAL, CLUSTER = "one process (store repair)", "Spark, local[2]", "Spark, two workers"


@dataclass
class Run:
    """One way to make queues and index."""

    way: str
    wall_s: float
    cpu_s: float
    queues: str = ""  # how they compare with Apache's
    index: str = ""


# --- comparing ----------------------------------------------------------------------------------------


def files_of(folder: Path) -> list[Path]:
    """Its files, without those that Apache's broker only made in advance."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and not is_blank(path))


def is_blank(path: Path) -> bool:
    return all(block.count(0) == len(block) for block in blocks(path))


def blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(READ_BYTES):
            yield block


def differs(one: Path, other: Path) -> int | None:
    """The first byte that two files do not share."""
    at = 0
    if one.stat().st_size != other.stat().st_size:
        return min(one.stat().st_size, other.stat().st_size)
    for left, right in zip(blocks(one), blocks(other), strict=True):
        if left != right:
            return at + next(n for n, (a, b) in enumerate(zip(left, right, strict=True)) if a != b)
        at += len(left)
    return None


def compared(made: Path, apaches: Path, *, by_name: bool) -> str:
    """What differs, in words. Files of the index are named by when they were made: they go by their order."""
    ours, theirs = files_of(made), files_of(apaches)
    if by_name:
        names = [
            {path.relative_to(folder) for path in files}
            for folder, files in ((made, ours), (apaches, theirs))
        ]
        if names[0] != names[1]:
            return f"other files: {', '.join(sorted(map(str, names[0] ^ names[1]))[:5])}"
    elif len(ours) != len(theirs):
        return f"{len(ours)} files, Apache's has {len(theirs)}"
    unlike = [
        f"{path.relative_to(made)} at byte {at}"
        for path, other in zip(ours, theirs, strict=True)
        if (at := differs(path, other)) is not None
    ]
    if unlike:
        return f"{len(unlike)} of {len(ours)} files differ: {', '.join(unlike[:5])}"
    return f"{len(ours)} files, all the same"


# --- running ------------------------------------------------------------------------------------------


class Measuring:
    """Runs commands, with their time on the wall and the CPU time of all processes they use."""

    def __init__(self) -> None:
        self._cpu = machine.FamilyCpu(os.getpid())

    def run(self, way: str, words: list[str], environment: dict[str, str] | None = None) -> Run:
        print(f"{way}: kerolox {' '.join(words)}", flush=True)
        cpu_s, began_s = self._cpu.now_s(), time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "kerolox", *words],
            env={**os.environ, **(environment or {})}, capture_output=True, text=True,
        )  # fmt: skip
        wall_s, cpu_s = time.monotonic() - began_s, self._cpu.now_s() - cpu_s
        if done.returncode:
            raise SystemExit(
                f"{way} failed with {done.returncode}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
            )
        print(f"  {wall_s:.1f} s, {cpu_s:.1f} s CPU", flush=True)
        return Run(way, wall_s, cpu_s)

    def close(self) -> None:
        self._cpu.close()


# --- serving ------------------------------------------------------------------------------------------


def served(nameserver: str, messages: int) -> str:
    """Whether a broker gives messages by offset, from all parts of all queues, and by key."""
    by_offset = by_key = 0

    async def look(admin: AdminCalls) -> None:
        nonlocal by_offset, by_key
        lookups = Lookups(admin)
        for topic in TOPICS:
            bounds = {queue.queue_id: bound for queue, bound in (await admin.topic_stats(topic)).items()}
            for queue in await admin.queues(topic):
                low, high = bounds[queue.queue_id].min_offset, bounds[queue.queue_id].max_offset
                by_offset += await _pulled(
                    lookups, topic, queue, range(low, high, max(1, (high - low) // 20))
                )
        for each in range(0, messages, max(1, messages // 60)):
            topic = TOPICS[each // 1000 % len(TOPICS)]
            found = (await lookups.by_key(topic, f"key{each}")).messages
            if [message.body[:12] for message in found] != [b"%012d" % each]:
                raise KeroloxError(f"key{each} of {topic}: {len(found)} messages")
            by_key += 1

    run_admin(nameserver, look)
    return f"{by_offset} by offset, {by_key} by key"


async def _pulled(lookups: Lookups, topic: str, queue: BrokerQueue, offsets: range) -> int:
    for offset in offsets:
        messages, _, _ = await lookups.pull(topic, queue, offset, count_max=1)
        if [message.queue_offset for message in messages] != [offset]:
            raise KeroloxError(f"{topic} queue {queue.queue_id} offset {offset}: {len(messages)} messages")
    return len(offsets)


def wait_registered(nameserver: str, process: subprocess.Popen[bytes], output: Path) -> None:
    deadline_s = time.monotonic() + START_S

    async def ask(admin: AdminCalls) -> None:
        for topic in TOPICS:
            await admin.topic_stats(topic)

    while True:
        try:
            return run_admin(nameserver, ask)
        except KeroloxError as error:
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise SystemExit(
                    f"the broker does not serve: {error}\n{output.read_text()[-2000:]}"
                ) from error
            time.sleep(0.5)


def served_by_ours(store: Path, nameserver: str, messages: int) -> str:
    config = store.parent / "ours.conf"
    values = {
        **DEFAULT_SIZES,
        "brokerIP1": "127.0.0.1",
        "brokerName": "broker-a",
        "brokerClusterName": "DefaultCluster",
        "storePathRootDir": store,
        "storePathCommitLog": store / "commitlog",
        "diskMaxUsedSpaceRatio": 95,
    }
    config.write_text(
        "".join(
            f"{key}={str(value).lower() if isinstance(value, bool) else value}\n"
            for key, value in values.items()
        )
    )
    (port,) = free_ports(1, offsets=(0, -2, 1))
    words = ["broker", "-c", str(config), "-n", nameserver, "--listen", f"127.0.0.1:{port}"]
    with (store.parent / "ours.txt").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "kerolox", *words, "--log-level", "warning"], stdout=output, stderr=output
        )
    try:
        wait_registered(nameserver, process, store.parent / "ours.txt")
        return served(nameserver, messages)
    finally:
        process.terminate()
        process.wait(120)


# --- all of it ----------------------------------------------------------------------------------------


def run(folder: Path, gib: float) -> Result:
    facts = machine.describe()
    apache = ApacheStore(folder)
    measuring = Measuring()
    try:
        apache.start()
        messages = apache.fill(int(gib * GIB))
        apache.stop()
        store, aside = apache.store, folder / "apaches"
        aside.mkdir()
        for name in PARTS:
            (store / name).rename(aside / name)
        log_bytes = sum(path.stat().st_size for path in (store / "commitlog").iterdir())
        print(f"{messages:,} messages, {log_bytes / GIB:.2f} GiB of log files", flush=True)
        runs = [_local(measuring, store, folder)]
        runs.append(_clustered(measuring, store, folder))
        runs.append(measuring.run(SINGLE, ["store", "repair", str(store), "--queues", "--index", "--yes"]))
        for done, made in zip(runs, (folder / "local", folder / "cluster", store), strict=True):
            done.queues = compared(made / PARTS[0], aside / PARTS[0], by_name=True)
            done.index = compared(made / PARTS[1], aside / PARTS[1], by_name=False)
            print(f"{done.way}: queues {done.queues}; index {done.index}", flush=True)
        measuring.run("put in place", [*_words(store, folder / "local", "local[2]"), "--in-place"])
        opened = {"kerolox": served_by_ours(store, apache.nameserver.address, messages)}
        print(f"our broker: {opened['kerolox']}", flush=True)
        apache.start()
        opened[f"Apache RocketMQ {apache.version}"] = served(apache.nameserver.address, messages)
    finally:
        measuring.close()
        apache.close()
    return _result(facts, gib, messages, log_bytes, runs, opened)


def _words(store: Path, to: Path, master: str) -> list[str]:
    return [
        "pipeline",
        "rebuild",
        str(store),
        "--to",
        str(to),
        "--master",
        master,
        "--like",
        "apache",
        "--json",
    ]


def _local(measuring: Measuring, store: Path, folder: Path) -> Run:
    return measuring.run(LOCAL, _words(store, folder / "local", "local[2]"))


def _clustered(measuring: Measuring, store: Path, folder: Path) -> Run:
    with spark_cluster(folder) as master:
        settings = {"SPARK_CONF_DIR": str(driver_settings(folder))}
        return measuring.run(CLUSTER, _words(store, folder / "cluster", master), settings)


def _result(
    facts: dict[str, str], gib: float, messages: int, log_bytes: int, runs: list[Run], opened: dict[str, str]
) -> Result:
    (alone,) = (done for done in runs if done.way == SINGLE)
    made = Table(
        "Queues and index made again from the log",
        ["way", "wall s", "CPU s", "messages/s", "wall, one process / this", "CPU, one process / this"],
        [
            [
                done.way,
                number(done.wall_s),
                number(done.cpu_s),
                number(messages / done.wall_s),
                f"{alone.wall_s / done.wall_s:.2f}",
                f"{alone.cpu_s / done.cpu_s:.2f}",
            ]
            for done in runs
        ],
        ["With all starts: of Python, of Spark and its workers. CPU of all processes, the cluster's too."],
    )
    same = Table(
        "Compared with those of Apache's broker, byte by byte",
        ["way", "queues", "index"],
        [[done.way, done.queues, done.index] for done in runs],
        [
            "Our own index keeps the keys of a message in one file and has no tags: that of `store repair` "
            "is not meant to be the same."
        ],
    )
    open_ = Table(
        "Opened by",
        ["broker", "what was asked, and right"],
        [[name, told] for name, told in opened.items()],
    )
    return Result(
        "rebuild",
        "Rebuild on Spark",
        [
            f"A store of Apache's broker with {messages:,} messages of 880 B in three topics, two keys and "
            f"a tag each, some delays and transactions: {log_bytes / GIB:.2f} GiB of log files. Run: "
            "`make rebuild`.",
        ],
        facts,
        {"gib": gib},
        [made, same, open_],
        {"runs": [vars(done) for done in runs]},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=4.0, help="size of the log")
    parser.add_argument("--folder", type=Path, help="where the store is made; needs three times its size")
    parser.add_argument("--out", type=Path, default=FOLDER, help="where the result is kept")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="kerolox-rebuild-", dir=arguments.folder))
    try:
        result = run(folder, arguments.gib)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    result.show()
    print(f"kept in {result.save(arguments.out)}")
    if arguments.out == FOLDER:
        report.write()
    wrong = [row for row in result.tables[1].rows if row[0] != SINGLE and "all the same" not in min(row[1:])]
    if wrong:
        raise SystemExit(f"not the same as Apache's: {json.dumps(wrong)}")


if __name__ == "__main__":
    main()
