"""``kerolox demo``: a demonstration that takes seconds and needs no setup."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kerolox.cli.output import JsonFlag, Output, echo, one_line_errors, output
from kerolox.errors import KeroloxError

if TYPE_CHECKING:
    from rich.progress import Progress

    from kerolox import Client, Received
    from kerolox.cli.demo_broker import DemoBroker
    from kerolox.cli.demo_shop import Shop

EXAMPLE = "Example: kerolox demo"


@one_line_errors
def play(
    messages: Annotated[
        int, typer.Option(min=1, help="Number of messages to send singly, and again in batches.")
    ] = 20_000,
    seconds: Annotated[
        float, typer.Option(min=0, help="Seconds of steady load, during which the broker is killed; 0: none.")
    ] = 12.0,
    data: Annotated[
        Path | None, typer.Option(help="Folder to keep the files in. Default: delete them.", metavar="DIR")
    ] = None,
    spark: Annotated[bool, typer.Option(help="Run streaming queries on Spark, if installed.")] = True,
    json: JsonFlag = False,
) -> None:
    """Demonstrate kerolox on this machine: servers, clients, a broker crash, and Spark.

    Starts a name server and a broker, sends and consumes thousands of orders, kills the broker under load
    (kill -9), restarts it and counts lost orders. Then Spark sums up the orders in Parquet files and sends
    alerts to a topic. Finally everything is stopped.
    """
    import tempfile

    from kerolox.cli.nameservers import forget_keys
    from kerolox.net.loop import run

    forget_keys()
    with tempfile.TemporaryDirectory(prefix="kerolox-demo-") as temporary:
        place = data or Path(temporary)
        demo = Demo(output(json), messages, seconds, place, kept=data is not None, quiet=json)
        try:
            with _log_to(place / "demo.log"):  # no warnings on the terminal: the outage is intended
                run(demo.play(spark=spark))
        except KeyboardInterrupt:
            echo("\nStopped. No process is left running.", err=True)
            raise typer.Exit(130) from None


@contextmanager
def _log_to(path: Path) -> Iterator[None]:
    import logging

    from kerolox.log_lines import LineFormatter

    path.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(path)
    handler.setFormatter(LineFormatter())
    logger = logging.getLogger("kerolox")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()


class Demo:
    """Steps of the demo."""

    def __init__(
        self, out: Output, count: int, seconds: float, place: Path, *, kept: bool, quiet: bool
    ) -> None:
        from rich.console import Console

        self._out = out
        self._count = count
        self._seconds = seconds
        self._place = place
        self._kept = kept
        self._console = Console(stderr=True)
        self._no_bars = quiet or not self._console.is_terminal
        self._words: list[str] = []  # sentences about the outcome, also for the page

    async def play(self, *, spark: bool) -> None:
        from kerolox import Client
        from kerolox.cli import demo_spark
        from kerolox.cli.demo_broker import DemoBroker
        from kerolox.cli.demo_shop import ALERTS, QUEUES, TOPIC
        from kerolox.cli.up import nameserver_in
        from kerolox.compiled import CORE
        from kerolox.net.loop import LOOP_NAME

        out, place = self._out, self._place
        told: dict[str, Any] | None = None
        failed: KeroloxError | None = None
        async with (
            nameserver_in(place, ("127.0.0.1", 0)) as nameserver,
            DemoBroker(nameserver.address, place) as broker,
            Client(nameserver.address) as client,
        ):
            out.note(f"1. Name server running on {nameserver.address}, broker on {broker.address}.")
            core = "pure Python" if CORE is None else "compiled core"
            out.note(f"   ({LOOP_NAME}, {core}; RocketMQ's Java and Go clients can connect, too)")
            for topic, queues in ((TOPIC, QUEUES), (ALERTS, 2)):
                await _create(nameserver.address, broker.address, topic, queues)
            shop = await self._messages(client, broker)
            if spark and demo_spark.is_installed():
                try:
                    told = await self._queries(client, nameserver.address, shop)
                except KeroloxError as error:
                    failed = error
        size_bytes = _bytes_on_disk(place)
        document = shop.figures()
        document["spark"] = told
        document["data"] = {"path": str(place), "bytesOnDisk": size_bytes, "kept": self._kept}
        tables = shop.tables()
        if told is not None:
            tables.append(demo_spark.table(told))
        out.note("")
        out.show(document, *tables)
        self._say_where(size_bytes, shop, told)
        if failed is not None:
            raise failed
        if spark and told is None:
            out.note(demo_spark.MISSING)

    async def _messages(self, client: Client, broker: DemoBroker) -> Shop:
        """Send orders and bill them in a consumer."""
        from kerolox import Producer, PushConsumer, PushOptions
        from kerolox.cli.demo_shop import BATCH, IN_FLIGHT, RETRY_EVERY, STEADY_RATE, TOPIC, Shop

        async with (
            Producer(client, group="demo-shop") as producer,
            PushConsumer(client, group="demo-billing", options=PushOptions(start="first")) as consumer,
        ):
            shop = Shop(producer, consumer, broker)
            out, count, seconds = self._out, self._count, self._seconds
            out.note(f"2. A consumer subscribes to {TOPIC}; it rejects one order in {RETRY_EVERY} once.")
            if seconds:
                out.note(
                    f"3. {STEADY_RATE:,} orders per second for {seconds:g} s; the broker is killed meanwhile:"
                )
                with self._bars() as bar:
                    steady = bar.add_task("sent", total=round(seconds * STEADY_RATE))
                    arrived = bar.add_task("consumed", total=round(seconds * STEADY_RATE))
                    shop.on_consumed = lambda: bar.update(arrived, completed=len(shop.seen))
                    await shop.send_steadily(seconds, lambda done: bar.update(steady, completed=done))
                    await shop.end_steady()
                self._words += _outcome(shop)
            out.note(f"4. Orders at full speed, {IN_FLIGHT} at a time, then in batches of {BATCH}:")
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
        from kerolox import PushConsumer, PushOptions
        from kerolox.cli import demo_spark
        from kerolox.cli.demo_shop import ALERT_FROM, ALERTS, STEP_MS, TOPIC

        out, place = self._out, self._place
        received: set[str] = set()  # orders, by their keys

        async def alarm(messages: list[Received]) -> None:
            received.update(key for message in messages for key in message.keys)

        place.mkdir(parents=True, exist_ok=True)
        count = len(shop.sent)
        arguments = (address, TOPIC, ALERTS, str(ALERT_FROM), str(count), str(STEP_MS), str(place))
        out.note("5. Spark starts in a separate process ...")
        with self._bars() as bar:
            async with (
                demo_spark.queries(*arguments, log=place / "spark.log") as queries,
                PushConsumer(client, group="demo-alarm", options=PushOptions(start="first")) as consumer,
            ):
                consumer.subscribe(ALERTS, alarm, batch=32)
                started = await queries.started()
                out.note(
                    f"6. Spark {started['spark']} on Java {started['java']}: a streaming query sums up the "
                    f"orders by region in Parquet files,\n   another sends each order of {ALERT_FROM} or "
                    f"more to topic {ALERTS}, which a consumer reads:"
                )
                tasks = {what: bar.add_task(what, total=count) for what in ("added", "searched")}
                told = await queries.done(lambda what, done: bar.update(tasks[what], completed=done))
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

    def _say_where(self, size_bytes: int, shop: Shop, told: dict[str, Any] | None) -> None:
        out, place = self._out, self._place
        for line in self._words:
            out.note(line)
        where = f"in {place} ({size_bytes / 1e6:.0f} MB)"
        if self._kept:
            out.note(f"The messages are {where}. See `kerolox store inspect` and `kerolox up --data`.")
            if told is not None:
                out.note(f"The totals are Parquet files in {place / 'totals'}.")
            from kerolox.cli.demo_page import page

            (place / "demo.html").write_text(page(shop, told, self._words), encoding="utf-8")
            out.note(f"All of it on one page, with plots: {place / 'demo.html'}")
        else:
            out.note(f"The messages were {where} and were deleted; `kerolox demo --data DIR` keeps them.")
        guides = "docs/CLIENT.md shows the client" + (
            "." if told is None else ", docs/SPARK.md the pipelines."
        )
        out.note(f"Run your own broker with `kerolox up`; {guides}")

    def _bars(self) -> Progress:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        return Progress(
            TextColumn("   {task.description:<12}"), BarColumn(), MofNCompleteColumn(),
            console=self._console, disable=self._no_bars,
        )  # fmt: skip


async def _create(nameserver: str, broker: str, topic: str, queues: int) -> None:
    from kerolox.client.admin.calls import AdminCalls
    from kerolox.client.nameservers import NameServers
    from kerolox.net.dialer import Dialer
    from kerolox.protocol.bodies.topics import TopicConfig

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
