"""Repairs under way: ``kerolox.repair``, our own note.

A repair changes the log first, and then what is made of it. In between the queues point to messages that are
not there. So the note is written before anything is changed, and removed when everything fits again: until
then no broker opens the store, and the same command, given again, goes on.
"""

from __future__ import annotations

import os

from kerolox.store.disk.files import Files, PathLike
from kerolox.store.errors import StoreError
from kerolox.store.offline.layout import ASIDE, QUEUES, Layout, is_segment_name

NAME = "kerolox.repair"
_FRESH = ".tmp"


class RepairUnfinished(StoreError):
    """A repair of the store was interrupted, or is under way. Nothing was changed."""

    def __init__(self, root: str, words: str) -> None:
        self.words = words
        command = f"kerolox store repair {root} {words}".rstrip()
        super().__init__(
            f"{root} is half repaired: {command} was interrupted, or is under way. Nothing was changed. Give "
            "that command again: it goes on where it was.",
            path=root,
        )


class RepairNote:
    """The note of one store."""

    def __init__(self, files: Files, root: PathLike) -> None:
        self.path = os.path.join(os.fspath(root), NAME)
        self._files = files

    def load(self) -> str | None:
        """The options of the command that was begun; None when no repair is under way."""
        data = self._files.read_if_exists(self.path)
        return None if data is None else data.decode("utf-8", "replace").strip()

    def save(self, words: str) -> None:
        self._files.write_atomic(self.path, f"{words}\n".encode())

    def remove(self) -> None:
        if self._files.remove(self.path):
            self._files.sync_dir(os.path.dirname(self.path))


def refuse_unfinished(root: PathLike, files: Files) -> None:
    """Raise while a repair is unfinished."""
    words = RepairNote(files, root).load()
    if words is not None:
        raise RepairUnfinished(os.fspath(root), words)


def clear_interrupted(layout: Layout, files: Files) -> None:
    """Remove what an interrupted repair left in the way of the next one."""
    for directory in layout.log_paths:
        for name in files.list_dir(directory):
            if name.endswith(_FRESH) and is_segment_name(name.removesuffix(_FRESH)):
                files.remove(os.path.join(directory, name))
    queues = layout.path(QUEUES)
    if not files.exists(queues):
        # It was between putting the old queues aside and putting the new ones in their place. The old ones
        # tell which topics there are, and how far queues without messages have counted.
        aside = [name for name in files.list_dir(layout.root) if name.startswith(QUEUES + ASIDE)]
        if aside:
            files.rename(layout.path(max(aside)), queues)
            files.sync_dir(layout.root)
