"""``kerolox send``"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from kerolox.cli import completion
from kerolox.cli.nameservers import DEFAULT_ADDRESS, NameServerOption, split_addresses
from kerolox.cli.output import JsonFlag, column, echo, one_line_errors, output, row, table
from kerolox.cli.progress import ProgressLine
from kerolox.errors import KeroloxError, OptionError, sentences
from kerolox.times import parse_moment, parse_span

if TYPE_CHECKING:
    from kerolox import Message, Producer, Queue

EXAMPLE = "Example: kerolox send TopicTest 'hello' --tag TagA --key order-42"

GROUP = "CLI_PRODUCER"
IN_FLIGHT_MAX = 64
TIMEOUT_S = 5.0
SHOWN_MAX = 20
READ_BYTES = 64 << 10


@one_line_errors
def send(
    topic: Annotated[str, typer.Argument(help="Topic to send to.", autocompletion=completion.topics)],
    bodies: Annotated[
        list[str] | None, typer.Argument(help="Message bodies. Default: lines of --file or stdin.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="Send each line of this file as a message.")
    ] = None,
    whole: Annotated[bool, typer.Option("--whole", help="Send the file or stdin as one message.")] = False,
    tag: Annotated[str, typer.Option(help="Tag of the messages.")] = "",
    keys: Annotated[list[str] | None, typer.Option("--key", help="Key of the messages. Repeatable.")] = None,
    properties: Annotated[
        list[str] | None, typer.Option("--property", "-p", help="User property, name=value. Repeatable.")
    ] = None,
    delay_level: Annotated[int, typer.Option(help="Delay level; 0: no delay.", min=0)] = 0,
    delay: Annotated[
        str | None, typer.Option(help="Delay before delivery: 500ms, 90s, 15m, 1h30m.", metavar="SPAN")
    ] = None,
    deliver_at: Annotated[
        str | None, typer.Option(help="Time of delivery: 2026-01-31T12:00:00.", metavar="TIME")
    ] = None,
    queue: Annotated[int | None, typer.Option(help="Id of the queue. Default: all in turn.", min=0)] = None,
    order_key: Annotated[
        str | None, typer.Option(help="Order key. Messages with the same key go to one queue, in order.")
    ] = None,
    nameserver: NameServerOption = DEFAULT_ADDRESS,
    json: JsonFlag = False,
) -> None:
    """Send messages: arguments, lines of a file, or lines of stdin.

    Stops at the first failure and reports which messages were not sent and where to continue.
    """
    from kerolox import Message
    from kerolox.clock import SYSTEM_CLOCK
    from kerolox.net.loop import run

    extra = dict(_property(text) for text in properties or ())
    if bool(delay_level) + (delay is not None) + (deliver_at is not None) > 1:
        given = delay if delay is not None else deliver_at
        raise OptionError(
            "--deliver-at" if delay is None else "--delay",
            given,
            "only one of --delay-level, --delay and --deliver-at",
        )
    if queue is not None and order_key is not None:
        raise OptionError("--order-key", order_key, "either --queue or --order-key")
    delay_s = None if delay is None else parse_span(delay, "--delay")
    at_s = (
        None
        if deliver_at is None
        else parse_moment(deliver_at, SYSTEM_CLOCK.wall_ms(), "--deliver-at") / 1000
    )

    def message(body: bytes) -> Message:
        return Message(
            topic,
            body,
            tags=tag,
            keys=keys or (),
            properties=extra,
            delay_level=delay_level,
            delay=delay_s,
            deliver_at=at_s,
        )

    size = file.stat().st_size if file is not None and file.is_file() else 0
    sending = LineSending(topic, queue, order_key, message, size)
    run(sending.run(split_addresses(nameserver), _bodies(bodies, file, whole)))
    document = {
        "sent": sending.sent,
        "failed": len(sending.failed),
        "failedNumbers": sorted(sending.failed),
        "notTriedFrom": sending.not_tried_from,
        "first": sending.shown,
    }
    output(json).show(document, table(SentRow, sending.shown, empty="nothing was sent"))
    more = f", the first {len(sending.shown)} shown" if sending.sent > len(sending.shown) else ""
    echo(f"{sending.sent} sent{more}", err=True)
    if sending.failed:
        echo(f"kerolox: {sending.what_failed('message' if bodies or whole else 'line')}", err=True)
        raise typer.Exit(1)


@row
class SentRow:
    """Acknowledged message."""

    message_id: str = column("id")
    broker: str
    queue_id: int = column("queue")
    queue_offset: int = column("offset")
    status: str


class LineSending:
    """Concurrent sending of many messages. Starts no further sends after the first failure."""

    def __init__(
        self,
        topic: str,
        queue_id: int | None,
        order_key: str | None,
        message: Callable[[bytes], Message],
        size_bytes: int = 0,
    ) -> None:
        self.sent = 0
        self.failed: dict[int, str] = {}  # number of the message, from 1 → error text
        self.not_tried_from: int | None = None
        self.shown: list[SentRow] = []
        self._topic = topic
        self._queue_id = queue_id
        self._order_key = order_key
        self._message = message
        self._size_bytes = size_bytes  # of all messages to send; 0: unknown
        self._taken_bytes = 0
        self._turn = 0

    async def run(self, nameservers: list[str], bodies: Iterator[list[tuple[int, bytes]]]) -> None:
        import asyncio

        from kerolox import ClientOptions, Producer, ProducerOptions

        tasks: set[asyncio.Task[None]] = set()
        progress = ProgressLine(self._how_far)
        where = ClientOptions(nameservers)
        async with Producer(where, group=GROUP, options=ProducerOptions(timeout_s=TIMEOUT_S)) as producer:
            # Raises if no broker serves the topic.
            queues = await producer.queues(self._topic)
            if self._queue_id is not None and all(queue.queue_id != self._queue_id for queue in queues):
                raise OptionError("--queue", self._queue_id, f"a writable queue of topic {self._topic}")
            try:
                # In a thread, because reading stdin blocks; responses arrive meanwhile.
                while self.not_tried_from is None and (some := await asyncio.to_thread(next, bodies, None)):
                    for number, body in some:
                        while len(tasks) >= IN_FLIGHT_MAX:
                            _, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                        if self.failed:
                            self.not_tried_from = number
                            break
                        task = asyncio.create_task(self._send(producer, number, body))
                        tasks.add(task)
                        if not self.sent:
                            await task  # the first one connects; only then are later ones sent in order
                        self._taken_bytes += len(body) + 1
                        progress.tell()
            finally:
                if tasks:
                    await asyncio.wait(tasks)
        progress.end()

    def _how_far(self) -> str:
        if not self._size_bytes:
            return f"{self.sent} sent"
        return f"{self.sent} sent, {min(100, self._taken_bytes * 100 // self._size_bytes)}% of the file"

    async def _send(self, producer: Producer, number: int, body: bytes) -> None:
        choose = None if self._queue_id is None else self._choose
        try:
            receipt = await producer.send(self._message(body), order_key=self._order_key, selector=choose)
        except KeroloxError as error:
            self.failed[number] = " ".join(str(error).split())
            return
        self.sent += 1
        if len(self.shown) < SHOWN_MAX:
            queue, status = receipt.queue, "SEND_OK" if receipt.ok else receipt.status.name
            self.shown.append(
                SentRow(receipt.msg_id, queue.broker, queue.queue_id, receipt.queue_offset, status)
            )

    def _choose(self, queues: Sequence[Queue], message: Message) -> Queue:
        """Return the queue with the wanted id, of each broker in turn."""
        wanted = [queue for queue in queues if queue.queue_id == self._queue_id]
        self._turn += 1
        return wanted[self._turn % len(wanted)]

    def what_failed(self, noun: str) -> str:
        """Return a text with the messages that were not sent, the reason, and where to continue."""
        numbers = sorted(self.failed)
        which = noun if len(numbers) == 1 else f"{noun}s"
        told = f"{len(numbers)} not sent ({which} {_spans(numbers)}): {self.failed[numbers[0]]}"
        if self.not_tried_from is not None:
            told = sentences(told, f"Stopped: {noun} {self.not_tried_from} and later were not sent")
        return told


def _spans(numbers: list[int]) -> str:
    """Return sorted numbers as ranges: ``1, 3-5``."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in spans)


def _bodies(bodies: list[str] | None, file: Path | None, whole: bool) -> Iterator[list[tuple[int, bytes]]]:
    """Yield lists of numbered bodies; each list has those available without blocking."""
    if bodies:
        if file is not None:
            raise OptionError("--file", str(file), "either messages as arguments or a file")
        yield [(number, body.encode()) for number, body in enumerate(bodies, 1)]
        return
    given = None if file is None or str(file) == "-" else file
    source = cast(BufferedReader, sys.stdin.buffer) if given is None else given.open("rb")
    with source:
        if whole:
            yield [(1, source.read())]
            return
        number, rest = 0, b""
        while data := source.read1(READ_BYTES):  # returns the available bytes: typed lines are sent at once
            *lines, rest = (rest + data).split(b"\n")
            if some := _not_empty(lines, number):
                yield some
            number += len(lines)
        if some := _not_empty([rest], number):
            yield some


def _not_empty(lines: list[bytes], before: int) -> list[tuple[int, bytes]]:
    # Brokers reject empty messages.
    stripped = ((number, line.rstrip(b"\r")) for number, line in enumerate(lines, before + 1))
    return [(number, line) for number, line in stripped if line]


def _property(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name or not value:
        raise OptionError("--property", text, "name=value")
    return name, value
