"""Shell completion of topic and group names. No names are offered if the servers do not answer in time."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import typer

from kerolox.cli.nameservers import DEFAULT_ADDRESS, run_admin

if TYPE_CHECKING:
    from kerolox.client.admin.calls import AdminCalls

ANSWER_S = 1.0  # limit of a completion: the user waits at the prompt


def topics(ctx: typer.Context, incomplete: str) -> list[str]:
    async def ask(admin: AdminCalls) -> list[str]:
        known = await admin.topics()
        # System topics are offered only after the user has typed the first letters.
        return known if incomplete else await admin.made_by_people(known)

    return _names(ctx, incomplete, ask)


def groups(ctx: typer.Context, incomplete: str) -> list[str]:
    async def ask(admin: AdminCalls) -> list[str]:
        from kerolox.client.admin.calls import at_all

        tables = await at_all(await admin.masters(), admin.groups)
        return sorted({group for table in tables.values() for group in table})

    return _names(ctx, incomplete, ask)


def _names(
    ctx: typer.Context, incomplete: str, ask: Callable[[AdminCalls], Coroutine[Any, Any, list[str]]]
) -> list[str]:
    import asyncio

    from kerolox.errors import KeroloxError

    async def work(admin: AdminCalls) -> list[str]:
        async with asyncio.timeout(ANSWER_S):
            return await ask(admin)

    try:
        known = run_admin(str(ctx.params.get("nameserver") or DEFAULT_ADDRESS), work)
    except (KeroloxError, OSError, TimeoutError):
        return []
    return [name for name in known if name.startswith(incomplete)]
