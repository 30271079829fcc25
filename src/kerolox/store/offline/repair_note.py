"""Note of a repair under way: ``kerolox.repair``.

A repair changes the log first, and then the files built from it. In between the queues point to messages that
do not exist. So the note is written before any change, and removed when everything is consistent again: until
then no broker opens the store, and the same command continues the repair.
"""

from __future__ import annotations

import os

from kerolox.store.disk.files import Files, PathLike
from kerolox.store.errors import StoreError
from kerolox.store.offline.layout import ASIDE, QUEUES, Layout, is_segment_name

NAME = "kerolox.repair"
_FRESH = ".tmp"


class RepairUnfinished(StoreError):
    """Store whose repair was interrupted, or is under way. Nothing was changed."""

    def __init__(self, root: str, words: str) -> None:
        self.words = words
        command = f"kerolox store repair {root} {words}".rstrip()
        super().__init__(
            f"{root} is partly repaired: {command} was interrupted, or is running. Nothing was changed. Run "
            "that command again: it continues.",
            path=root,
        )


class RepairNote:
    """Note of one store."""

    def __init__(self, files: Files, root: PathLike) -> None:
        self.path = os.path.join(os.fspath(root), NAME)
        self._files = files

    def load(self) -> str | None:
        """Return the options of the command that was begun; None if no repair is under way."""
        data = self._files.read_if_exists(self.path)
        return None if data is None else data.decode("utf-8", "replace").strip()

    def save(self, words: str) -> None:
        self._files.write_atomic(self.path, f"{words}\n".encode())

    def remove(self) -> None:
        if self._files.remove(self.path):
            self._files.sync_dir(os.path.dirname(self.path))


def refuse_unfinished(root: PathLike, files: Files) -> None:
    """Raise if a repair is unfinished."""
    words = RepairNote(files, root).load()
    if words is not None:
        raise RepairUnfinished(os.fspath(root), words)


def clear_interrupted(layout: Layout, files: Files) -> None:
    """Remove files of an interrupted repair that prevent the next one."""
    for directory in layout.log_paths:
        for name in files.list_dir(directory):
            if name.endswith(_FRESH) and is_segment_name(name.removesuffix(_FRESH)):
                files.remove(os.path.join(directory, name))
    queues = layout.path(QUEUES)
    if not files.exists(queues):
        # The repair was interrupted between moving the old queues aside and moving the new ones in. The old
        # ones show the topics, and the next offsets of queues without messages.
        aside = [name for name in files.list_dir(layout.root) if name.startswith(QUEUES + ASIDE)]
        if aside:
            files.rename(layout.path(max(aside)), queues)
            files.sync_dir(layout.root)
