"""``kerolox store resync``: truncate a diverged follower to the last message in common with its leader."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kerolox.cli.nameservers import new_dialer, run_admin
from kerolox.cli.output import JsonFlag, Output, OutputTable, one_line_errors, output
from kerolox.cli.store import ConfigFileOption, StoreDirectory, ask, layout_of, options_of, progress_of
from kerolox.errors import OptionError
from kerolox.times import time_text

if TYPE_CHECKING:
    from kerolox.client.admin.calls import AdminCalls
    from kerolox.replication.parting import Parting
    from kerolox.store.offline.layout import Layout

EXAMPLE = "Example: kerolox store resync /var/lib/kerolox/store --leader 10.0.0.1:10911 --dry-run"


@one_line_errors
def resync(
    directory: StoreDirectory,
    leader: Annotated[
        str | None,
        typer.Option("--leader", help="Address of the leader.", metavar="HOST:PORT"),
    ] = None,
    nameserver: Annotated[
        str | None,
        typer.Option(
            "--nameserver",
            "-n",
            help="Name servers to look up the leader, with --broker.",
            metavar="HOST:PORT",
        ),
    ] = None,
    broker: Annotated[
        str | None, typer.Option("--broker", help="Name of the broker, with --nameserver.")
    ] = None,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Proceed even if nothing is in common and the leader has less.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the changes without making them.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation prompt.")] = False,
    config_file: ConfigFileOption = None,
    json: JsonFlag = False,
) -> None:
    """Truncate the log of a rejected follower to the last message in common with its leader.

    The follower can then replicate again. Stop the broker first. Removed messages are moved to a folder of
    the store, not deleted.
    """
    from kerolox.net.loop import run
    from kerolox.replication.resync import carry_out, check_worth, store_options
    from kerolox.store.disk.files import Files
    from kerolox.store.disk.lock import StoreLock

    address = _leader(leader, nameserver, broker)
    layout = layout_of(directory, config_file)
    options = store_options(layout, options_of(config_file))
    out = output(json)
    with StoreLock(Files(), layout.root), progress_of("compare") as progress:
        parting = run(_compare(layout, address, progress))
    document = _document(parting, layout, address)
    _tell(parting, address, out)
    cuts = parting.keep_to < parting.own.end
    if cuts and not anyway:
        check_worth(parting, address)
    if not cuts:
        out.note("Nothing to do. Start the broker: it continues to replicate.")
    elif dry_run:
        out.note("Nothing was changed: --dry-run.")
    else:
        ask("Truncate the log?", yes)
        document["putAside"] = aside = run(carry_out(parting, layout, options, address))
        out.note(
            f"The log ends at {parting.keep_to}. The messages after that are in {aside}, described by "
            "README.json there. Start the broker: it continues to replicate."
        )
    if json:
        out.show(document)


def _leader(leader: str | None, nameserver: str | None, broker: str | None) -> str:
    if leader is not None:
        if nameserver is not None or broker is not None:
            raise OptionError("--leader", leader, "either --leader, or -n and --broker")
        host, separator, port = leader.rpartition(":")
        if not separator or not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise OptionError("--leader", leader, "host:port, as in 10.0.0.1:10911")
        return leader
    if nameserver is None or broker is None:
        raise OptionError("--leader", "missing", "the leader's address, or -n and --broker")
    name = broker

    async def look(admin: AdminCalls) -> dict[str, str]:
        return await admin.masters(broker=name)

    return run_admin(nameserver, look)[broker]


async def _compare(layout: Layout, address: str, progress: Callable[[int, int], None]) -> Parting:
    from kerolox.replication.leader_questions import LeaderQuestions
    from kerolox.replication.own_log import OwnLog
    from kerolox.replication.parting import find_parting

    own = await asyncio.to_thread(OwnLog, layout)
    async with new_dialer() as dialer:
        return await find_parting(own, LeaderQuestions(dialer, address), progress)


def _document(parting: Parting, layout: Layout, address: str) -> dict[str, Any]:
    behind = parting.behind
    return {
        "store": layout.root,
        "leader": address,
        "found": parting.found.name.lower(),
        "ours": {"begin": parting.own.low, "end": parting.own.end},
        "leaders": {"begin": parting.leader.low, "end": parting.leader.end},
        "commonEnd": parting.common_end,
        "commonStoredMs": parting.common_ms or None,
        "goes": {
            "bytes": behind.size_bytes,
            "messages": behind.records,
            "firstStoredMs": behind.first_ms or None,
            "lastStoredMs": behind.last_ms or None,
        },
        "leadersNextStoredMs": parting.leader_ms or None,
        "endsAt": parting.keep_to,
        "putAside": None,
    }


def _tell(parting: Parting, address: str, out: Output) -> None:
    behind, there = parting.behind, parting.leader
    common = parting.common_end
    rows = [
        ("log", f"{parting.own.low} to {parting.own.end}", f"{there.low} to {there.end}"),
        ("common log ends at", common, common),
        ("stored", time_text(parting.common_ms) or None, time_text(parting.common_ms) or None),
        ("bytes after it", behind.size_bytes, max(0, there.end - max(there.low, parting.keep_to))),
        ("messages after it", behind.records, None),
        ("first of them stored", time_text(behind.first_ms) or None, time_text(parting.leader_ms) or None),
        ("last of them stored", time_text(behind.last_ms) or None, None),
    ]
    out.note(f"{parting.found.value[:1].upper()}{parting.found.value[1:]}.")
    out.table(OutputTable(("", "here", f"leader {address}"), rows))
    if parting.keep_to < parting.own.end:
        what = "all messages" if parting.common_end is None else "all messages after the last common one"
        out.note(
            f"To be removed: {what}, {behind.records} messages of {behind.size_bytes} bytes. They are moved "
            "to a folder of the store. The broker then replicates the leader's messages instead."
        )
