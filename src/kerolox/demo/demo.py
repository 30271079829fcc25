"""Demonstration of kerolox on one machine: servers, clients, a broker crash, and Spark.

Starts a name server and a broker, sends and consumes thousands of orders, kills the broker under load,
restarts it and counts lost orders. Then Spark sums up the orders in Parquet files and sends alerts to a
topic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from kerolox import Client, Producer, PushConsumer, PushOptions
from kerolox.client.admin.calls import AdminCalls
from kerolox.client.nameservers import NameServers
from kerolox.compiled import CORE
from kerolox.demo import queries
from kerolox.demo.broker import DemoBroker
from kerolox.demo.page import page
from kerolox.demo.shop import (
    ALERT_FROM,
    ALERTS,
    BATCH,
    IN_FLIGHT,
    QUEUES,
    RETRY_EVERY,
    STEADY_RATE,
    STEP_MS,
    TOPIC,
    Shop,
)
from kerolox.errors import KeroloxError
from kerolox.net.dialer import Dialer
from kerolox.net.loop import LOOP_NAME
from kerolox.protocol.bodies.topics import TopicConfig
from kerolox.sizes import size_text
from kerolox.supervise.embedded import nameserver_in

if TYPE_CHECKING:
    from kerolox import Received


@dataclass
class DemoResult:
    """Outcome of a demo."""

    figures: dict[str, Any]  # of the shop
    place: Path
    size_bytes: int
    kept: bool  # the files stay in ``place``
    spark: dict[str, Any] | None  # result of the streaming queries
    failed: KeroloxError | None  # reason why the queries failed
    words: list[str] = field(default_factory=list)  # sentences about the outcome

    def document(self) -> dict[str, Any]:
        data = {"path": str(self.place), "bytesOnDisk": self.size_bytes, "kept": self.kept}
        return {**self.figures, "spark": self.spark, "data": data}

    def where(self) -> list[str]:
        """Return sentences about the files, and the next steps."""
        place, lines = self.place, []
        where = f"in {place} ({size_text(self.size_bytes)})"
        if self.kept:
            lines.append(f"The messages are {where}. See `kerolox store inspect` and `kerolox up --data`.")
            if self.spark is not None:
                lines.append(f"The totals are Parquet files in {place / 'totals'}.")
            lines.append(f"All of it on one page, with plots: {place / 'demo.html'}")
        else:
            lines.append(f"The messages were {where} and were deleted; `kerolox demo --data DIR` keeps them.")
        guides = "docs/CLIENT.md shows the client"
        guides += "." if self.spark is None else ", docs/SPARK.md the pipelines."
        lines.append(f"Run your own broker with `kerolox up`; {guides}")
        return lines


class Demo:
    """Steps of the demo."""

    def __init__(
        self,
        note: Callable[[str], object],
        count: int,
        seconds: float,
        place: Path,
        *,
        kept: bool,
        quiet: bool,
    ) -> None:
        """``note`` gets sentences about the progress; ``quiet``: no progress bars."""
        self._note = note
        self._count = count
        self._seconds = seconds
        self._place = place
        self._kept = kept
        self._console = Console(stderr=True)
        self._no_bars = quiet or not self._console.is_terminal
        self._words: list[str] = []  # sentences about the outcome, also for the page

    async def play(self, *, spark: bool) -> DemoResult:
        """Do all steps. ``spark``: run the streaming queries, if Spark is installed."""
        note, place = self._note, self._place
        told: dict[str, Any] | None = None
        failed: KeroloxError | None = None
        async with (
            nameserver_in(place, ("127.0.0.1", 0)) as nameserver,
            DemoBroker(nameserver.address, place) as broker,
            Client(nameserver.address) as client,
        ):
            note(f"1. Name server running on {nameserver.address}, broker on {broker.address}.")
            core = "pure Python" if CORE is None else "compiled core"
            note(f"   ({LOOP_NAME}, {core}; RocketMQ's Java and Go clients can connect, too)")
            for topic, queues in ((TOPIC, QUEUES), (ALERTS, 2)):
                await _create(nameserver.address, broker.address, topic, queues)
            shop = await self._messages(client, broker)
            if spark:
                try:
                    told = await self._queries(client, nameserver.address, shop)
                except KeroloxError as error:
                    failed = error
        if self._kept:
            (place / "demo.html").write_text(page(shop, told, self._words), encoding="utf-8")
        return DemoResult(shop.figures(), place, _bytes_on_disk(place), self._kept, told, failed, self._words)

    async def _messages(self, client: Client, broker: DemoBroker) -> Shop:
        """Send orders and bill them in a consumer."""
        async with (
            Producer(client, group="demo-shop") as producer,
            PushConsumer(client, group="demo-billing", options=PushOptions(start="first")) as consumer,
        ):
            shop = Shop(producer, consumer, broker)
            note, count, seconds = self._note, self._count, self._seconds
            note(f"2. A consumer subscribes to {TOPIC}; it rejects one order in {RETRY_EVERY} once.")
            if seconds:
                note(
                    f"3. {STEADY_RATE:,} orders per second for {seconds:g} s; the broker is killed meanwhile:"
                )
                with self._bars() as bar:
                    steady = bar.add_task("sent", total=round(seconds * STEADY_RATE))
                    arrived = bar.add_task("consumed", total=round(seconds * STEADY_RATE))
                    shop.on_consumed = lambda: bar.update(arrived, completed=len(shop.seen))
                    await shop.send_steadily(seconds, lambda done: bar.update(steady, completed=done))
                    await shop.end_steady()
                self._words += _outcome(shop)
            note(f"4. Orders at full speed, {IN_FLIGHT} at a time, then in batches of {BATCH}:")
            with self._bars() as bar:
                singly, batches = (bar.add_task(name, total=count) for name in ("singly", "in batches"))
                before = len(shop.seen)
                consumed = bar.add_task("consumed", total=2 * count)
                shop.on_consumed = lambda: bar.update(consumed, completed=len(shop.seen) - before)
                await shop.send_singly(count, lambda done: bar.update(singly, completed=done))
                await shop.send_batches(count, lambda done: bar.update(batches, completed=done))
                await shop.wait_arrived()
        return shop

    async def _queries(self, client: Client, address: str, shop: Shop) -> dict[str, Any]:
        """Sum up the orders on Spark, and consume the alerts that Spark sends."""
        note, place = self._note, self._place
        received: set[str] = set()  # orders, by their keys

        async def alarm(messages: list[Received]) -> None:
            received.update(key for message in messages for key in message.keys)

        place.mkdir(parents=True, exist_ok=True)
        count = len(shop.sent)
        arguments = (address, TOPIC, ALERTS, str(ALERT_FROM), str(count), str(STEP_MS), str(place))
        note("5. Spark starts in a separate process ...")
        with self._bars() as bar:
            async with (
                queries.queries(*arguments, log=place / "spark.log") as process,
                PushConsumer(client, group="demo-alarm", options=PushOptions(start="first")) as consumer,
            ):
                consumer.subscribe(ALERTS, alarm, batch=32)
                started = await process.started()
                note(
                    f"6. Spark {started['spark']} on Java {started['java']}: a streaming query sums up the "
                    f"orders by region in Parquet files,\n   another sends each order of {ALERT_FROM} or "
                    f"more to topic {ALERTS}, which a consumer reads:"
                )
                tasks = {what: bar.add_task(what, total=count) for what in ("added", "searched")}
                told = await process.done(lambda what, done: bar.update(tasks[what], completed=done))
                await shop.wait_for(lambda: len(received) >= shop.large)
        told.update(started, alerts=shop.large, alertsReceived=len(received))
        del told["event"]
        self._words += [
            f"A streaming query on Spark read {told['read']:,} messages in {told['batches']} batches, in "
            f"{told['seconds']} s, and found {told['orders']:,} different orders: "
            f"{count - told['orders']} are missing.",
            f"{told['alerts']:,} orders were of {ALERT_FROM} or more; {told['alertsReceived']:,} alerts "
            f"arrived through topic {ALERTS}.",
        ]
        return told

    def _bars(self) -> Progress:
        return Progress(
            TextColumn("   {task.description:<12}"), BarColumn(), MofNCompleteColumn(),
            console=self._console, disable=self._no_bars,
        )  # fmt: skip


async def _create(nameserver: str, broker: str, topic: str, queues: int) -> None:
    config = TopicConfig(topic_name=topic, read_queue_nums=queues, write_queue_nums=queues)
    async with Dialer() as dialer:
        await AdminCalls(NameServers([nameserver], dialer), dialer).put_topic(broker, config)


def _outcome(shop: Shop) -> list[str]:
    figures = shop.figures()
    away_s, twice = figures["steady"]["brokerAwayMs"] / 1000, figures["twice"]
    words = [
        f"The broker was killed (kill -9) and was back after {away_s:.1f} s: of {len(shop.sent):,} "
        f"acknowledged orders {figures['missing']} are missing."
    ]
    if twice:
        words.append(
            f"{twice} arrived twice: the broker was killed before it could acknowledge them, or before it "
            "had stored the consumer's progress."
        )
    return words


def _bytes_on_disk(place: Path) -> int:
    return sum(file.stat().st_blocks * 512 for file in place.rglob("*") if file.is_file())
