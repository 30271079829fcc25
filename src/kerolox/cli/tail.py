"""``kerolox tail``"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kerolox.cli import completion
from kerolox.cli.messages import body_text, document
from kerolox.cli.nameservers import DEFAULT_ADDRESS, NameServerOption, run_admin
from kerolox.cli.output import JsonFlag, echo, json_text, one_line_errors, say
from kerolox.shown_text import visible
from kerolox.times import parse_time, time_text

if TYPE_CHECKING:
    import asyncio

    from kerolox.client.admin.calls import AdminCalls, BrokerQueue
    from kerolox.client.admin.lookups import Lookups
    from kerolox.protocol.message import StoredMessage

EXAMPLE = "Example: kerolox tail TopicTest --tags 'TagA || TagB' --from 10m"

HOLD_MS = 15_000
RETRY_S = 1.0
ROUTE_REFRESH_S = 30.0
BODY_SHOWN = 200


@one_line_errors
def follow(
    topic: Annotated[str, typer.Argument(help="Topic to follow.", autocompletion=completion.topics)],
    tags: Annotated[str, typer.Option(help="Only messages with these tags: 'A || B'.")] = "*",
    sql: Annotated[
        str | None,
        typer.Option(help='Only messages whose properties match: "a > 5 AND b IS NOT NULL".'),
    ] = None,
    begin: Annotated[
        str, typer.Option("--from", help="Start position: now, 10m (ago), a time, or 0 for all messages.")
    ] = "now",
    count: Annotated[int | None, typer.Option(help="Stop after this number of messages.", min=1)] = None,
    nameserver: NameServerOption = DEFAULT_ADDRESS,
    json: JsonFlag = False,
) -> None:
    """Print messages of a topic as they arrive, until Ctrl-C. Does not affect consumer progress."""
    from kerolox.client.admin.calls import LATEST_MS
    from kerolox.clock import SYSTEM_CLOCK
    from kerolox.errors import OptionError
    from kerolox.protocol.subscription import SQL92, TAG, subscription

    if sql is not None:
        from kerolox.protocol.filters.sql import compile_filter

        if tags != "*":
            raise OptionError("--sql", sql, "either --tags or --sql. In SQL, write tags as TAGS = 'A'")
        compile_filter(sql)
    expression, kind = (tags, TAG) if sql is None else (sql, SQL92)
    subscription(topic, expression, 0, kind)  # raises for an invalid expression
    time_ms = LATEST_MS if begin == "now" else parse_time(begin, SYSTEM_CLOCK.wall_ms(), "--from")

    async def work(admin: AdminCalls) -> None:
        await TopicTail(admin, topic, expression, kind, time_ms, count, as_json=json).run()

    try:
        run_admin(nameserver, work)
    except KeyboardInterrupt:
        pass


class TopicTail:
    """Tasks that read the queues of a topic, one for each, and a periodic search for new queues."""

    def __init__(
        self,
        admin: AdminCalls,
        topic: str,
        expression: str,
        expression_type: str,
        time_ms: int,
        count: int | None,
        *,
        as_json: bool,
    ) -> None:
        self._admin = admin
        self._topic = topic
        self._expression = expression
        self._expression_type = expression_type
        self._time_ms = time_ms
        self._left = count
        self._as_json = as_json

    async def run(self) -> None:
        import asyncio

        from kerolox.client.admin.lookups import Lookups
        from kerolox.client.errors import NotFound

        lookups = Lookups(self._admin)
        followed: dict[BrokerQueue, asyncio.Task[None]] = {}
        self._done = asyncio.Event()
        queues = await self._admin.queues(self._topic)  # raises for an unknown topic
        if not queues:
            raise NotFound(f"topic {self._topic} has no readable queue")
        # All start offsets first: every message sent after the line below is shown.
        starts = await asyncio.gather(
            *(
                self._admin.offset_at(queue.address, self._topic, queue.queue_id, self._time_ms)
                for queue in queues
            )
        )
        say(f"following {len(queues)} queues of {self._topic}")
        try:
            for queue, offset in zip(queues, starts, strict=True):
                followed[queue] = asyncio.create_task(self._follow(lookups, queue, offset))
            while not self._done.is_set():
                try:
                    async with asyncio.timeout(ROUTE_REFRESH_S):
                        await self._done.wait()
                except TimeoutError:
                    await self._look_for_queues(lookups, followed)
        finally:
            for task in followed.values():
                task.cancel()
            await asyncio.gather(*followed.values(), return_exceptions=True)

    async def _look_for_queues(
        self, lookups: Lookups, followed: dict[BrokerQueue, asyncio.Task[None]]
    ) -> None:
        import asyncio

        from kerolox.errors import KeroloxError

        try:
            queues = await self._admin.queues(self._topic)
        except KeroloxError as error:
            say(str(error))
            return
        for queue in queues:
            if queue not in followed:
                say(f"new queue {queue.queue_id} at {queue.broker}")
                followed[queue] = asyncio.create_task(self._follow(lookups, queue, 0))

    async def _follow(self, lookups: Lookups, queue: BrokerQueue, offset: int) -> None:
        import asyncio

        from kerolox.errors import KeroloxError

        failed = ""
        while True:
            try:
                messages, offset, _ = await lookups.pull(
                    self._topic,
                    queue,
                    offset,
                    hold_ms=HOLD_MS,
                    expression=self._expression,
                    expression_type=self._expression_type,
                )
            except KeroloxError as error:
                if str(error) != failed:  # reported once, not every second
                    failed = str(error)
                    say(f"{failed}; retrying")
                await asyncio.sleep(RETRY_S)
                continue
            failed = ""
            for message in messages:
                if self._done.is_set():
                    return
                self._show(message)

    def _show(self, message: StoredMessage) -> None:
        if self._as_json:
            echo(json_text(document(message)))
        else:
            tag = f" [{message.tag}]" if message.tag else ""
            echo(
                visible(
                    f"{time_text(message.store_timestamp)} {message.broker_name}/{message.queue_id}"
                    f"@{message.queue_offset}{tag} {body_text(message, BODY_SHOWN)}"
                )
            )
        if self._left is not None:
            self._left -= 1
            if self._left <= 0:
                self._done.set()
