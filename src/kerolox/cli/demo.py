"""``kerolox demo``: see it work in a few seconds, with nothing to set up."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kerolox.cli.output import JsonFlag, Output, Table, one_line_errors, output
from kerolox.errors import KeroloxError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.progress import Progress

    from kerolox import Client, Producer, PushConsumer, Received

EXAMPLE = "Example: kerolox demo"

TOPIC, QUEUES = "demo-orders", 8
ALERTS, ALERT_FROM = "demo-alerts", 990
REGIONS = ("east", "north", "north", "north", "north", "south", "south", "south", "west", "west")
IN_FLIGHT = 64
BATCH = 100
BODY_BYTES = 200
RETRY_EVERY = 500  # of so many orders one is refused the first time
PHASE_S_MAX = 6.0  # a slow machine sends less, instead of longer
ARRIVE_S_MAX = 12.0


@one_line_errors
def play(
    messages: Annotated[
        int, typer.Option(min=1, help="How many are sent one by one, and again in batches.")
    ] = 20_000,
    data: Annotated[
        Path | None, typer.Option(help="Keep the files in this folder; else they go.", metavar="DIR")
    ] = None,
    spark: Annotated[bool, typer.Option(help="Also streaming queries on Spark, if it is installed.")] = True,
    json: JsonFlag = False,
) -> None:
    """Start a name server and a broker, and send and consume thousands of orders through them. Then let Spark
    add the orders up into Parquet files and send alerts to a topic; and stop everything."""
    import tempfile

    from kerolox.net.loop import run

    with tempfile.TemporaryDirectory(prefix="kerolox-demo-") as temporary:
        demo = Demo(output(json), messages, data or Path(temporary), kept=data is not None, quiet=json)
        try:
            run(demo.play(spark=spark))
        except KeyboardInterrupt:
            typer.echo("\nStopped. Nothing is left running.", err=True)
            raise typer.Exit(130) from None


class Demo:
    """What is shown, step by step."""

    def __init__(self, out: Output, count: int, place: Path, *, kept: bool, quiet: bool) -> None:
        from rich.console import Console

        self._out = out
        self._count = count
        self._place = place
        self._kept = kept
        self._console = Console(stderr=True)
        self._no_bars = quiet or not self._console.is_terminal
        self._words: list[str] = []  # how it went, for the page

    async def play(self, *, spark: bool) -> None:
        from kerolox import Client
        from kerolox.broker.broker import Broker
        from kerolox.broker.options import BrokerOptions
        from kerolox.cli import demo_spark
        from kerolox.cli.broker import by_key
        from kerolox.cli.up import EMBEDDED, _nameserver
        from kerolox.compiled import CORE
        from kerolox.net.loop import LOOP_NAME

        out, place = self._out, self._place
        told: dict[str, Any] | None = None
        failed: KeroloxError | None = None
        async with _nameserver(place, ("127.0.0.1", 0)) as nameserver:
            settings: dict[str, Any] = {
                "bind_address": "127.0.0.1",
                "listen_port": 0,
                "broker_name": "demo-broker",
                "nameservers": nameserver.address,
                "store_path": str(place / "demo-broker"),
                **by_key(BrokerOptions, [f"{key}={value}" for key, value in EMBEDDED.items()]),
            }
            async with Broker(BrokerOptions(**settings)) as broker, Client(nameserver.address) as client:
                out.note(f"1. A name server runs on {nameserver.address}, a broker on {broker.address}.")
                core = "pure Python" if CORE is None else "compiled core"
                out.note(f"   ({LOOP_NAME}, {core}; Java and Go clients of RocketMQ could use them too)")
                for topic, queues in ((TOPIC, QUEUES), (ALERTS, 2)):
                    await _create(nameserver.address, broker.address, topic, queues)
                shop = await self._messages(client)
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
        self._say_where(size_bytes, told)
        if failed is not None:
            raise failed
        if spark and told is None:
            out.note(demo_spark.MISSING)

    async def _messages(self, client: Client) -> Shop:
        """Orders are sent, and billed by a consumer."""
        from kerolox import Producer, PushConsumer, PushOptions

        async with (
            Producer(client, group="demo-shop") as producer,
            PushConsumer(client, group="demo-billing", options=PushOptions(start="first")) as consumer,
        ):
            shop = Shop(producer, consumer)
            out, count = self._out, self._count
            out.note(f"2. A consumer waits for topic {TOPIC}; one order in {RETRY_EVERY} is refused once.")
            out.note(f"3. A producer sends orders, {IN_FLIGHT} at a time, then in batches of {BATCH}:")
            with self._bars() as bar:
                singly, batches = (bar.add_task(name, total=count) for name in ("singly", "in batches"))
                arrived = bar.add_task("consumed", total=2 * count)
                shop.on_consumed = lambda: bar.update(arrived, completed=len(shop.seen))
                await shop.send_singly(count, lambda done: bar.update(singly, completed=done))
                await shop.send_batches(count, lambda done: bar.update(batches, completed=done))
                await shop.wait_arrived()
        return shop

    async def _queries(self, client: Client, address: str, shop: Shop) -> dict[str, Any]:
        """Spark adds the orders up, and sends alerts, which a consumer gets."""
        from kerolox import PushConsumer, PushOptions
        from kerolox.cli import demo_spark

        out, place = self._out, self._place
        received: set[str] = set()

        async def alarm(messages: list[Received]) -> None:
            received.update(message.msg_id for message in messages)

        place.mkdir(parents=True, exist_ok=True)
        arguments = (address, TOPIC, ALERTS, str(ALERT_FROM), str(shop.sent), str(place))
        out.note("4. Spark starts, in a process of its own ...")
        with self._bars() as bar:
            async with (
                demo_spark.queries(*arguments, log=place / "spark.log") as queries,
                PushConsumer(client, group="demo-alarm", options=PushOptions(start="first")) as consumer,
            ):
                consumer.subscribe(ALERTS, alarm, batch=32)
                started = await queries.started()
                out.note(
                    f"5. Spark {started['spark']} on Java {started['java']}: a streaming query adds the "
                    f"orders up by region into Parquet files,\n   another sends each of {ALERT_FROM} or more "
                    f"to topic {ALERTS}, where a consumer waits:"
                )
                tasks = {what: bar.add_task(what, total=shop.sent) for what in ("added", "searched")}
                told = await queries.done(lambda what, done: bar.update(tasks[what], completed=done))
                await shop.wait_for(lambda: len(received) >= shop.large)
        told.update(started, alerts=shop.large, alertsReceived=len(received))
        del told["event"]
        self._words = [
            f"{told['read']:,} orders were read by a streaming query in {told['batches']} batches, in "
            f"{told['seconds']} s; {shop.sent - told['read']} are missing.",
            f"{told['alerts']:,} orders were of {ALERT_FROM} or more; {told['alertsReceived']:,} alerts came "
            f"through topic {ALERTS}.",
        ]
        return told

    def _say_where(self, size_bytes: int, told: dict[str, Any] | None) -> None:
        out, place = self._out, self._place
        for line in self._words:
            out.note(line)
        where = f"in {place} ({size_bytes / 1e6:.0f} MB)"
        if self._kept:
            out.note(f"The messages are {where}: look with `kerolox store inspect`, or `kerolox up --data`.")
            if told is not None:
                from kerolox.cli.demo_spark import page

                (place / "demo.html").write_text(page(told, self._words), encoding="utf-8")
                out.note(f"The totals are Parquet files in {place / 'totals'}; plots: {place / 'demo.html'}")
        else:
            out.note(f"The messages were {where}, and are gone now; `kerolox demo --data DIR` keeps them.")
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
    from kerolox.client.admin import Admin
    from kerolox.client.nameservers import NameServers
    from kerolox.net.dialer import Dialer
    from kerolox.protocol.bodies.topics import TopicConfig

    config = TopicConfig(topic_name=topic, read_queue_nums=queues, write_queue_nums=queues)
    async with Dialer() as dialer:
        await Admin(NameServers([nameserver], dialer), dialer).put_topic(broker, config)


class Shop:
    """Sends orders and bills them, and measures both."""

    def __init__(self, producer: Producer, consumer: PushConsumer) -> None:
        self.on_consumed: Callable[[], object] = lambda: None
        self.seen: dict[str, int] = {}  # msg_id → how often it was taken
        self._producer = producer
        self._sent: set[str] = set()
        self._send_ms: list[float] = []
        self._batch_ms: list[float] = []
        self._arrive_ms: list[float] = []
        self._refused = 0
        self._singles = self._batched = 0
        self._singles_s = self._batched_s = 0.0
        self._first_s = self._last_s = 0.0
        self.large = 0  # orders that alerts are sent for
        consumer.subscribe(TOPIC, self.bill, batch=32)

    @property
    def sent(self) -> int:
        return len(self._sent)

    # --- consuming ----------------------------------------------------------------------------

    async def bill(self, messages: list[Received]) -> None:
        from kerolox import Retry
        from kerolox.clock import SYSTEM_CLOCK

        now_ms, now_s = SYSTEM_CLOCK.wall_ms(), SYSTEM_CLOCK.monotonic_s()
        self._first_s = self._first_s or now_s
        refused: list[Received] = []
        for message in messages:
            if message.reconsume_times == 0:
                self._last_s = now_s  # the wait for retries is no part of the rate
                self._arrive_ms.append(now_ms - message.born_timestamp)
                if number_of(message.body) % RETRY_EVERY == 0:
                    refused.append(message)
                    continue
            self.seen[message.msg_id] = self.seen.get(message.msg_id, 0) + 1
        self.on_consumed()
        if refused:
            self._refused += len(refused)
            raise Retry("the bank is closed", level=1, messages=refused)

    async def wait_arrived(self) -> None:
        """Until all that was sent was taken, those that were refused too; not for ever."""
        await self.wait_for(lambda: self._sent <= self.seen.keys())

    async def wait_for(self, condition: Callable[[], bool]) -> None:
        from kerolox.clock import SYSTEM_CLOCK

        end_s = SYSTEM_CLOCK.monotonic_s() + ARRIVE_S_MAX
        while not condition() and SYSTEM_CLOCK.monotonic_s() < end_s:
            await SYSTEM_CLOCK.sleep(0.05)

    # --- sending ------------------------------------------------------------------------------

    async def send_singly(self, count: int, tick: Callable[[int], object]) -> None:
        import asyncio

        from kerolox import Message
        from kerolox.clock import SYSTEM_CLOCK

        began_s = SYSTEM_CLOCK.monotonic_s()
        numbers = iter(range(1, count + 1))

        async def work() -> None:
            for number in numbers:
                at_s = SYSTEM_CLOCK.monotonic_s()
                if at_s - began_s > PHASE_S_MAX:
                    return
                receipt = await self._producer.send(Message(TOPIC, _body(number), keys=f"o-{number}"))
                self._send_ms.append((SYSTEM_CLOCK.monotonic_s() - at_s) * 1000)
                self._sent.add(receipt.msg_id)
                self.large += amount(number) >= ALERT_FROM
                if number % 100 == 0:
                    tick(len(self._sent))

        await asyncio.gather(*(work() for _ in range(IN_FLIGHT)))
        self._singles = len(self._sent)
        self._singles_s = SYSTEM_CLOCK.monotonic_s() - began_s
        tick(self._singles)

    async def send_batches(self, count: int, tick: Callable[[int], object]) -> None:
        from kerolox import Message
        from kerolox.clock import SYSTEM_CLOCK

        began_s = SYSTEM_CLOCK.monotonic_s()
        for first in range(1, count + 1, BATCH):
            at_s = SYSTEM_CLOCK.monotonic_s()
            if at_s - began_s > PHASE_S_MAX:
                break
            numbers = range(first, min(first + BATCH, count + 1))
            receipts = await self._producer.send_batch([Message(TOPIC, _body(number)) for number in numbers])
            self._batch_ms.append((SYSTEM_CLOCK.monotonic_s() - at_s) * 1000)
            self._sent.update(receipt.msg_id for receipt in receipts)
            self.large += sum(amount(number) >= ALERT_FROM for number in numbers)
            self._batched += len(receipts)
            tick(self._batched)
        self._batched_s = SYSTEM_CLOCK.monotonic_s() - began_s

    # --- what came of it ----------------------------------------------------------------------

    def figures(self) -> dict[str, Any]:
        return {
            "sent": _line(self._singles, self._singles_s, self._send_ms),
            "sentInBatches": _line(self._batched, self._batched_s, self._batch_ms),
            "consumed": _line(len(self.seen), self._last_s - self._first_s, self._arrive_ms),
            "refusedOnce": self._refused,
            "missing": len(self._sent - self.seen.keys()),
            "twice": sum(times > 1 for times in self.seen.values()),
        }

    def tables(self) -> list[Table]:
        figures = self.figures()
        rows = [
            (name, f"{row['messages']:,}", f"{row['perSecond']:,}", row["p50Ms"], row["p99Ms"])
            for name, row in (
                (f"sent, {IN_FLIGHT} at a time", figures["sent"]),
                (f"sent in batches of {BATCH}", figures["sentInBatches"]),
                ("consumed (from its birth)", figures["consumed"]),
            )
        ]
        outcome = (figures["refusedOnce"], figures["missing"], figures["twice"])
        return [
            Table(("what", "messages", "a second", "p50 ms", "p99 ms"), rows),
            Table(("retried", "missing", "taken twice"), [outcome]),
        ]


def _bytes_on_disk(place: Path) -> int:
    return sum(file.stat().st_blocks * 512 for file in place.rglob("*") if file.is_file())


def _body(number: int) -> bytes:
    """An order as JSON; all of the same length."""
    region = REGIONS[number % len(REGIONS)]
    order = f'{{"order":{number:8},"region":"{region}","amount":{amount(number):.2f},"note":"'
    return f'{order:.<{BODY_BYTES - 2}}"}}'.encode()


def number_of(body: bytes) -> int:
    return int(body[9:17])


def amount(number: int) -> float:
    return number * 7919 % 100_000 / 100


def _line(count: int, seconds: float, times_ms: Sequence[float]) -> dict[str, Any]:
    ordered = sorted(times_ms)
    return {
        "messages": count,
        "perSecond": round(count / seconds) if seconds > 0 else count,
        "p50Ms": _percentile(ordered, 0.50),
        "p99Ms": _percentile(ordered, 0.99),
    }


def _percentile(ordered: Sequence[float], part: float) -> float:
    return round(float(ordered[min(len(ordered) - 1, int(len(ordered) * part))]), 1) if ordered else 0.0
