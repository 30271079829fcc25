"""Stores that a command is still building: no broker opens them.

``kerolox pipeline split`` and ``merge`` keep their state in the folder ``_work`` of the new store: the
request, and at the end a note that it is finished. In between the store is not complete. A broker would take
it for a store that has lost its log, or begin another log beside the one being built.
"""

from __future__ import annotations

import os
from typing import Any, Final

import msgspec

from kerolox.store.disk.files import Files, PathLike
from kerolox.store.errors import StoreError

WORK: Final = "_work"
PLAN: Final = "plan.json"
FINISHED: Final = "finished.json"
FORM: Final = "kerolox transfer 2"  # form of the plans of commands that build a whole store


class HalfMade(StoreError):
    """Store that is not complete: a command was interrupted, or is still running."""


def refuse_half_made(root: PathLike, files: Files) -> None:
    """Raise if ``split`` or ``merge`` has begun a store and not finished it. Changes nothing."""
    work = os.path.join(root, WORK)
    content = files.read_if_exists(os.path.join(work, PLAN))
    if content is None or files.exists(os.path.join(work, FINISHED)):
        return
    try:
        plan: dict[str, Any] = msgspec.json.decode(content, type=dict)
    except msgspec.DecodeError:
        return  # plans are written as a whole: this file is not a plan
    if plan.get("form") != FORM:
        return
    root = os.fspath(root)
    archives = [address for address, *_ in plan.get("archives", ())]
    sources = " and ".join([*plan.get("stores", ()), *archives])
    raise HalfMade(
        f"{root} is not complete: kerolox pipeline split or merge was building it from {sources}, and has "
        f"not finished. Run that command again with --to {root}: it continues. Or remove {root}; the "
        "sources are unchanged.",
        path=root,
    )
