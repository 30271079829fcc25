"""``currterm``: the current term of this member, and its vote in that term.

A member that lost them could vote twice in a term, and two members could lead in it. So they are on disk
before a vote or a term is answered. Apache's members write the same file without waiting for the disk.

They delete the old file before they rename the new one, and keep a copy of the old one: their directory may
contain only ``currterm.bak`` and ``currterm.tmp``. The more recent content is then used: remembering a vote
that was never answered is harmless, losing one that was answered is not.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from kerolox.errors import ProtocolError
from kerolox.protocol.bodies.properties_text import read_properties, write_properties
from kerolox.store.disk.files import Files, PathLike
from kerolox.store.errors import StoreError

FILE = "currterm"


class TermFileUnusable(StoreError):
    """It is there and does not say what this member promised."""


class Promise(NamedTuple):
    """The durable state of a member: its term and its vote."""

    term: int = 0
    voted_for: str | None = None


class TermFile:
    """Keeps the promise in a directory. Its functions wait for the disk."""

    def __init__(self, directory: PathLike, files: Files) -> None:
        self.path = os.path.join(os.fspath(directory), FILE)
        self._files = files

    def load(self) -> Promise:
        """Raises TermFileUnusable when a file is there, but none can be read."""
        texts = [self._files.read_if_exists(self.path + end) for end in ("", ".tmp", ".bak")]
        said = [read_promise(text) for text in texts if text is not None]
        if texts[0] is not None and said[0] is not None:
            return said[0]
        known = [promise for promise in said if promise is not None]
        if known:
            return max(known, key=lambda promise: (promise.term, promise.voted_for is not None))
        if said:
            raise TermFileUnusable(
                f"{self.path} does not say for whom this member voted, nor do its copies: perhaps the "
                "machine lost power. If no other member of the group is down, remove currterm, "
                "currterm.bak and currterm.tmp, and start it again: it learns the term from the others.",
                path=self.path,
            )
        return Promise()

    def save(self, promise: Promise) -> None:
        """It is on the disk when this returns. Raises StoreError."""
        self._files.make_dirs(os.path.dirname(self.path))
        self._files.write_atomic(self.path, write_promise(promise))


def read_promise(text: bytes) -> Promise | None:
    """None for a text that is no promise, or not all of one."""
    try:
        said = read_properties(text)
        term = int(said["currTerm"])
    except (ProtocolError, KeyError, ValueError):
        return None
    if term < 0 or "voteLeader" not in said or not text.endswith((b"\n", b"\r")):
        return None
    return Promise(term, said["voteLeader"] or None)


def write_promise(promise: Promise) -> bytes:
    said = {"voteLeader": promise.voted_for or "", "currTerm": promise.term}
    return write_properties(said).encode("ascii")
