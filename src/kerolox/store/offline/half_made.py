"""Stores that a command is still making: nobody opens them.

``kerolox pipeline split`` and ``merge`` keep what they need on the way in the folder ``_work`` of the new
store: what was asked for, and in the end that it is done. Between these two the store is not whole. A broker
would take it for one that has lost its log, or begin another log beside what is being made.
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
FORM: Final = "kerolox transfer 2"  # of the plans of those who make a whole store


class HalfMade(StoreError):
    """The store is not whole yet: a command was interrupted, or is still at work."""


def refuse_half_made(root: PathLike, files: Files) -> None:
    """Raise when a store was begun by ``split`` or ``merge``, and is not finished. Changes nothing."""
    work = os.path.join(root, WORK)
    content = files.read_if_exists(os.path.join(work, PLAN))
    if content is None or files.exists(os.path.join(work, FINISHED)):
        return
    try:
        plan: dict[str, Any] = msgspec.json.decode(content, type=dict)
    except msgspec.DecodeError:
        return  # plans are written as a whole: this is somebody else's file
    if plan.get("form") != FORM:
        return
    root = os.fspath(root)
    archives = [address for address, *_ in plan.get("archives", ())]
    sources = " and ".join([*plan.get("stores", ()), *archives])
    raise HalfMade(
        f"{root} is half made: kerolox pipeline split or merge was making it from {sources}, and has not "
        f"ended. Give that command again, with --to {root}: it goes on where it was. Or remove {root}; the "
        "sources are as they were.",
        path=root,
    )
