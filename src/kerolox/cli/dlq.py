"""``kerolox dlq``"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from kerolox.cli import completion
from kerolox.cli.messages import Begin, End, KeyFilter, LimitOption, body_text, document, documents
from kerolox.cli.nameservers import DEFAULT_ADDRESS, NameServerOption, run_admin
from kerolox.cli.output import (
    JsonFlag,
    OutputTable,
    column,
    command,
    json_text,
    output,
    row,
    say,
    say_document,
    table,
)
from kerolox.cli.progress import ProgressLine
from kerolox.errors import KeroloxError, OptionError
from kerolox.times import parse_time, time_text

if TYPE_CHECKING:
    from kerolox.client.admin.calls import AdminCalls
    from kerolox.client.admin.dead_letters import Resend
    from kerolox.protocol.message import StoredMessage

app = typer.Typer(help="List, resend and export dead letters.", no_args_is_help=True)

BODY_SHOWN = 80

DeadGroupArgument = Annotated[
    str,
    typer.Argument(
        help="Consumer group, with or without the prefix %DLQ%.", autocompletion=completion.groups
    ),
]
Ids = Annotated[list[str] | None, typer.Option("--id", help="Offset id or unique key. Repeatable.")]


@row
class DeadLetterRow:
    """Dead letters of a group, in numbers."""

    group: str
    messages: int
    oldest: int | None = column("oldest", time_text)
    newest: int | None = column("newest", time_text)
    brokers: list[str] = column("brokers", ", ".join)


@command(app, "list", "kerolox dlq list")
def list_topics(nameserver: NameServerOption = DEFAULT_ADDRESS, json: JsonFlag = False) -> None:
    """List groups with dead letters: number, oldest and newest."""
    from kerolox.client.admin.dead_letters import DeadLetters, DeadTopic

    async def work(admin: AdminCalls) -> list[DeadTopic]:
        return await DeadLetters(admin).topics()

    rows = [
        DeadLetterRow(one.group, one.messages, one.oldest_ms, one.newest_ms, one.brokers)
        for one in run_admin(nameserver, work)
    ]
    output(json).show(rows, table(DeadLetterRow, rows, empty="no group has dead letters"))


@command(app, "show", "kerolox dlq show billing --from 1d --max 20")
def show(
    group: DeadGroupArgument,
    ids: Ids = None,
    key: KeyFilter = None,
    begin: Begin = None,
    end: End = None,
    limit: LimitOption = 100,
    marks: Annotated[
        bool, typer.Option("--marks", help="Show which were resent to their original topic.")
    ] = False,
    nameserver: NameServerOption = DEFAULT_ADDRESS,
    json: JsonFlag = False,
) -> None:
    """Show dead letters of a group, oldest first. Reports when the result is truncated."""
    chosen = Chosen(group, ids, key, begin, end)
    found: list[tuple[StoredMessage, bool | None]] = []

    async def work(admin: AdminCalls) -> None:
        from kerolox.client.admin.dead_letters import Resend, origin_of

        resend = Resend(admin, chosen.group)
        async for page in chosen.pages(admin):
            for message in page[: limit - len(found)]:
                known = origin_of(message) is not None
                found.append((message, await resend.is_resent(message) if marks and known else None))
            if len(found) >= limit:
                return

    run_admin(nameserver, work)
    cut = chosen.cut or (f"the first {len(found)} of {chosen.total}" if len(found) < chosen.total else "")
    shown = documents([message for message, _ in found])
    letters = [_document(message, fields, mark) for (message, mark), fields in zip(found, shown, strict=True)]
    columns = ["stored", "broker", "offset", "origin", "attempts", "reason", "keys", "id", "body"]
    rows = [_row(message) for message, _ in found]
    if marks:
        columns.append("resent")
        rows = [(*row, mark) for row, (_, mark) in zip(rows, found, strict=True)]
    output(json).show(
        {"messages": letters, "total": chosen.total, "complete": not cut, "cut": cut or None},
        OutputTable(columns, rows, empty=f"group {chosen.group} has no dead letters"),
    )
    if cut:
        say(f"truncated: {cut}")


@command(app, "resend", "kerolox dlq resend billing --all --rate 50 --dry-run")
def resend(
    group: DeadGroupArgument,
    ids: Ids = None,
    key: KeyFilter = None,
    begin: Begin = None,
    end: End = None,
    everything: Annotated[bool, typer.Option("--all", help="Resend all dead letters stored so far.")] = False,
    to_retry: Annotated[
        bool,
        typer.Option("--to-retry", help="Send to the group's retry topic: no other group receives them."),
    ] = False,
    to_topic: Annotated[
        str | None, typer.Option(help="Target topic. Default: the original topic of each message.")
    ] = None,
    rate: Annotated[float, typer.Option(help="Maximum messages per second; 0: unlimited.", min=0)] = 100,
    again: Annotated[
        bool, typer.Option("--again", help="Include dead letters that were resent before.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show how many messages would be resent.")
    ] = False,
    nameserver: NameServerOption = DEFAULT_ADDRESS,
    json: JsonFlag = False,
) -> None:
    """Resend dead letters to their original topic.

    Bodies, keys, tags and properties are kept; attempts start at 0. Every copy is marked with the property
    KEROLOX_RESENT_FROM, and a dead letter whose copy exists in the target topic is skipped: a second run
    continues where the first stopped and sends nothing twice. Do not start two runs at the same time: they do
    not detect each other. The dead letters stay stored until they expire.
    """
    from kerolox.client.admin.dead_letters import Resend

    if to_retry and to_topic is not None:
        raise OptionError("--to-topic", to_topic, "either --to-retry or --to-topic")
    chosen = Chosen(group, ids, key, begin, end)
    if not everything and not chosen.narrowed:
        error = OptionError("--all", False, "a choice of messages")
        error.args = ("choose the messages: --id, --key, --from, --to or --all",)
        raise error
    sending: list[Resend] = []

    async def work(admin: AdminCalls) -> None:
        run = Resend(
            admin,
            chosen.group,
            to_retry=to_retry,
            to_topic=to_topic,
            rate=rate,
            again=again,
            dry_run=dry_run,
        )
        sending.append(run)
        run.progress = ProgressLine(lambda: f"{run.done} of {chosen.total}").tell
        async for page in chosen.pages(admin):
            await run.page(page)

    stopped = _run(nameserver, work, chosen)
    done = sending[0] if sending else None
    resent, passed = (done.resent, done.passed_over) if done else (0, 0)
    at = None if done is None else done.at
    complete = not stopped and not chosen.cut
    shown = {
        "group": chosen.group,
        "dryRun": dry_run,
        "total": chosen.total,
        "resent": resent,
        "passedOver": passed,
        "complete": complete,
        "stopped": stopped or chosen.cut or None,
        "stoppedAt": _place(at) if stopped and at is not None else None,
    }
    row = (chosen.group, chosen.total, resent, passed)
    columns = ("group", "found", "would be resent" if dry_run else "resent", "resent before")
    output(json).show(shown, OutputTable(columns, [row]))
    if chosen.cut:
        say(f"the search was truncated: {chosen.cut}")
    if stopped:
        where = "" if at is None else f" at {_place(at)}, stored {time_text(at.store_timestamp)}"
        unsure = " This message may have been sent." if at is not None and not dry_run else ""
        say(
            f"stopped{where}: {stopped}. {resent + passed} of {chosen.total} were done.{unsure} "
            "Run the same command again to continue: resent messages are skipped"
        )
    if not complete:
        raise typer.Exit(1)


@command(app, "export", "kerolox dlq export billing --out billing.jsonl")
def export(
    group: DeadGroupArgument,
    out: Annotated[Path, typer.Option("--out", "-o", help="Output file; -: stdout.")] = Path("-"),
    raw: Annotated[
        bool, typer.Option("--raw", help="Write records in the store's format instead of JSON lines.")
    ] = False,
    ids: Ids = None,
    key: KeyFilter = None,
    begin: Begin = None,
    end: End = None,
    nameserver: NameServerOption = DEFAULT_ADDRESS,
    json: JsonFlag = False,
) -> None:
    """Write dead letters to a file: one JSON document per line, or concatenated raw records.

    A summary is printed on stderr, with --json as a JSON object.
    """
    from kerolox.protocol.record import encode_message

    chosen = Chosen(group, ids, key, begin, end)
    written = 0
    last: StoredMessage | None = None
    if str(out) != "-" and out.exists():
        raise OptionError("--out", str(out), "a file that does not exist")

    async def work(admin: AdminCalls) -> None:
        nonlocal written, last
        progress = ProgressLine(lambda: f"{written} of {chosen.total}")
        async for page in chosen.pages(admin):
            for message in page:
                file.write(encode_message(message) if raw else _line(message))
                written, last = written + 1, message
                progress.tell()

    file: BinaryIO
    if str(out) == "-":
        file = sys.stdout.buffer
        stopped = _run(nameserver, work, chosen)
        file.flush()
    else:
        with out.open("xb") as file:
            try:
                stopped = _run(nameserver, work, chosen)
            except BaseException:
                out.unlink()  # nothing was written
                raise
    complete = not stopped and not chosen.cut
    if json:
        # Not to stdout, which may carry the dead letters.
        say_document(
            {
                "group": chosen.group,
                "written": written,
                "total": chosen.total,
                "complete": complete,
                "stopped": stopped or chosen.cut or None,
                "goOnFrom": last.store_timestamp if stopped and last is not None else None,
            }
        )
    elif stopped:
        where = "" if last is None else f", the last from {_place(last)}"
        go_on = "" if last is None else f". Continue with --from {last.store_timestamp}"
        say(f"stopped: {stopped}. {written} of {chosen.total} were written{where}{go_on}")
    elif chosen.cut:
        say(f"the search was truncated: {chosen.cut}. {written} were written")
    else:
        say(f"{written} of {chosen.total} written, complete")
    if not complete:
        raise typer.Exit(1)


class Chosen:
    """Dead letters chosen by the options of a command. ``total`` is known after the first page."""

    def __init__(
        self, group: str, ids: list[str] | None, key: str | None, begin: str | None, end: str | None
    ) -> None:
        from kerolox.client.admin.dead_letters import Selection
        from kerolox.clock import SYSTEM_CLOCK
        from kerolox.protocol.limits import INT64_MAX

        if ids and (key, begin, end) != (None, None, None):
            raise OptionError("--id", " ".join(ids), "either --id, or --key, --from and --to")
        now_ms = SYSTEM_CLOCK.wall_ms()
        wanted = (("id", " ".join(ids or ())), ("key", key), ("from", begin), ("to", end))
        self.narrowed = bool(ids) or any(given is not None for given in (key, begin, end))
        self._selection = Selection(
            group,
            ids=ids or (),
            key=key,
            begin_ms=0 if begin is None else parse_time(begin, now_ms, "--from"),
            end_ms=INT64_MAX if end is None else parse_time(end, now_ms, "--to"),
            wanted=" ".join(f"--{option} {value}" for option, value in wanted if value),
        )
        self.group = self._selection.group
        self.pages = self._selection.pages

    @property
    def total(self) -> int:
        return self._selection.total

    @property
    def cut(self) -> str:
        return self._selection.cut


def _run(nameserver: str, work: Any, chosen: Chosen) -> str:
    """Do the work. Return the reason if it stopped early, else an empty text.

    Partial work is kept. Errors before any message was found are raised.
    """
    try:
        run_admin(nameserver, work)
    except KeroloxError as error:
        if not chosen.total:
            raise
        return " ".join(str(error).split())
    except KeyboardInterrupt:
        return "interrupted"
    return ""


def _document(message: StoredMessage, fields: dict[str, Any], mark: bool | None = None) -> dict[str, Any]:
    from kerolox.client.admin.dead_letters import origin_of, reason_of

    found = {"originTopic": origin_of(message), "reason": reason_of(message), **fields}
    return found if mark is None else {**found, "resent": mark}


def _line(message: StoredMessage) -> bytes:

    return json_text(_document(message, document(message))).encode() + b"\n"


def _row(message: StoredMessage) -> tuple[object, ...]:
    from kerolox.client.admin.dead_letters import origin_of, reason_of

    return (
        time_text(message.store_timestamp),
        message.broker_name,
        message.queue_offset,
        origin_of(message),
        message.reconsume_times,
        reason_of(message),
        " ".join(message.keys),
        message.message_id,
        body_text(message, BODY_SHOWN),
    )


def _place(message: StoredMessage) -> str:
    return f"{message.broker_name or message.store_address}/{message.queue_id}@{message.queue_offset}"
