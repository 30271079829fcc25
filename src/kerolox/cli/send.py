"""``kerolox send``"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kerolox.cli.nameservers import DEFAULT_ADDRESS, NameServerOption, run_admin
from kerolox.cli.output import JsonFlag, Table, one_line_errors, output
from kerolox.errors import KeroloxError, OptionError, RequestFailed

if TYPE_CHECKING:
    from kerolox.client.admin import Admin, Queue
    from kerolox.protocol.headers.send import SendAnswer
    from kerolox.protocol.message import Message
    from kerolox.protocol.message_id import UniqueKeys

EXAMPLE = "Example: kerolox send TopicTest 'hello' --tag TagA --key order-42"

GROUP = "CLI_PRODUCER"
IN_FLIGHT_MAX = 64
TIMEOUT_S = 5.0
PROGRESS_EVERY_S = 0.5
SHOWN_MAX = 20
TRIES = 3
STORED = (0, 10, 11, 12)  # the last three: stored, but not as safe as promised


@one_line_errors
def send(
    topic: Annotated[str, typer.Argument(help="Topic to send to.")],
    bodies: Annotated[
        list[str] | None, typer.Argument(help="A message each. Without any, lines are read from stdin.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="Send the lines of this file, a message each.")
    ] = None,
    whole: Annotated[bool, typer.Option("--whole", help="Send the file or stdin as one message.")] = False,
    tag: Annotated[str, typer.Option(help="Tag of the messages.")] = "",
    keys: Annotated[list[str] | None, typer.Option("--key", help="A key; may be repeated.")] = None,
    properties: Annotated[
        list[str] | None, typer.Option("--property", "-p", help="name=value; may be repeated.")
    ] = None,
    delay_level: Annotated[int, typer.Option(help="Deliver after the delay of this level.", min=0)] = 0,
    queue: Annotated[int | None, typer.Option(help="Send to this queue only.", min=0)] = None,
    nameserver: NameServerOption = DEFAULT_ADDRESS,
    json: JsonFlag = False,
) -> None:
    """Send messages: arguments, lines of a file, or lines of stdin."""
    from kerolox.protocol.message import Message

    table = dict(_property(text) for text in properties or ())

    def messages() -> Iterator[Message]:
        for body in _bodies(bodies, file, whole):
            yield Message(
                topic=topic,
                body=body,
                tag=tag,
                keys=tuple(keys or ()),
                properties=dict(table),
                delay_level=delay_level,
            )

    async def work(admin: Admin) -> Sending:
        sending = Sending(admin, topic, queue)
        await sending.run(messages())
        return sending

    sending = run_admin(nameserver, work)
    document = {"sent": sending.sent, "failed": sending.failed, "first": sending.shown}
    columns = ("id", "broker", "queue", "offset", "status")
    rows = [tuple(row.values()) for row in sending.shown]
    output(json).show(document, Table(columns, rows))
    more = f", the first {len(rows)} shown" if sending.sent > len(rows) else ""
    typer.echo(f"{sending.sent} sent{more}", err=True)
    if sending.failed:
        typer.echo(f"kerolox: {sending.failed} not sent: {sending.first_error}", err=True)
        raise typer.Exit(1)


class Sending:
    """Sends many messages, some at a time, over the writable queues of a topic in turn."""

    def __init__(self, admin: Admin, topic: str, queue_id: int | None) -> None:
        self.sent = 0
        self.failed = 0
        self.first_error = ""
        self.shown: list[dict[str, object]] = []
        self._admin = admin
        self._topic = topic
        self._queue_id = queue_id
        self._turn = 0

    async def run(self, messages: Iterator[Message]) -> None:
        import asyncio

        from kerolox.clock import SYSTEM_CLOCK

        self._queues = [
            queue
            for queue in await self._admin.queues(self._topic, for_sending=True)
            if self._queue_id is None or queue.queue_id == self._queue_id
        ]
        if not self._queues:
            raise OptionError("--queue", self._queue_id, f"a writable queue of topic {self._topic}")
        self._keys = _unique_keys()
        tasks: set[asyncio.Task[None]] = set()
        shown_s = SYSTEM_CLOCK.monotonic_s()
        try:
            while True:
                # Reading stdin waits: meanwhile answers come in.
                message = await asyncio.to_thread(next, messages, None)
                if message is None:
                    break
                while len(tasks) >= IN_FLIGHT_MAX:
                    _, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                task = asyncio.create_task(self._send(message))
                tasks.add(task)
                if not self.sent:
                    await task  # alone, while it connects: then all others keep their order
                tasks = {task for task in tasks if not task.done()}
                now_s = SYSTEM_CLOCK.monotonic_s()
                if now_s - shown_s >= PROGRESS_EVERY_S and sys.stderr.isatty():
                    shown_s = now_s
                    typer.echo(f"\r{self.sent} sent", err=True, nl=False)
        finally:
            if tasks:
                await asyncio.wait(tasks)
        if sys.stderr.isatty():
            typer.echo("\r", err=True, nl=False)

    async def _send(self, message: Message) -> None:
        message.unique_key = self._keys.next()
        error: KeroloxError | None = None
        for _ in range(TRIES):
            queue = self._queues[self._turn % len(self._queues)]
            self._turn += 1
            try:
                answer, code = await self._send_to(message, queue)
            except KeroloxError as failed:
                error = failed
                if not (failed.retriable or (isinstance(failed, RequestFailed) and failed.can_retry)):
                    break
                continue
            self._sent(message, queue, answer, code)
            return
        self.failed += 1
        self.first_error = self.first_error or " ".join(str(error).split())

    async def _send_to(self, message: Message, queue: Queue) -> tuple[SendAnswer, int]:
        from kerolox.client.admin import TEMPLATE_TOPIC
        from kerolox.clock import SYSTEM_CLOCK
        from kerolox.protocol.codes import RequestCode
        from kerolox.protocol.headers.send import SendAnswer, SendRequestV2
        from kerolox.protocol.properties import pack

        header = SendRequestV2(
            producer_group=GROUP,
            topic=message.topic,
            default_topic=TEMPLATE_TOPIC,
            default_topic_queue_nums=4,
            queue_id=queue.queue_id,
            sys_flag=0,
            born_timestamp=SYSTEM_CLOCK.wall_ms(),
            flag=message.flag,
            properties=pack(message.wire_properties()).decode(),
            reconsume_times=0,
            unit_mode=False,
            batch=False,
            broker_name=queue.broker,
        )
        answer = await self._admin.ask(
            queue.address,
            RequestCode.SEND_MESSAGE_V2,
            header,
            message.body,
            ok=STORED,
            timeout_s=TIMEOUT_S,
        )
        return answer.header(SendAnswer), answer.code

    def _sent(self, message: Message, queue: Queue, answer: SendAnswer, code: int) -> None:
        from kerolox.protocol.codes import response_name

        self.sent += 1
        if len(self.shown) < SHOWN_MAX:
            self.shown.append(
                {
                    "messageId": message.unique_key,
                    "broker": queue.broker,
                    "queueId": answer.queue_id,
                    "queueOffset": answer.queue_offset,
                    "status": "SEND_OK" if code == 0 else response_name(code),
                }
            )


def _bodies(bodies: list[str] | None, file: Path | None, whole: bool) -> Iterator[bytes]:
    if bodies:
        if file is not None:
            raise OptionError("--file", str(file), "either messages as arguments or a file")
        for body in bodies:
            yield body.encode()
        return
    source = sys.stdin.buffer if file is None or str(file) == "-" else file.open("rb")
    with source:
        if whole:
            yield source.read()
            return
        for line in source:
            stripped = line.rstrip(b"\r\n")
            if stripped:  # no broker takes an empty message
                yield stripped


def _property(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name or not value:
        raise OptionError("--property", text, "name=value")
    return name, value


def _unique_keys() -> UniqueKeys:
    import os
    import random

    from kerolox.clock import SYSTEM_CLOCK
    from kerolox.protocol.message_id import UniqueKeys

    return UniqueKeys(bytes([127, 0, 0, 1]), os.getpid(), random.getrandbits(32), SYSTEM_CLOCK.wall_ms)
