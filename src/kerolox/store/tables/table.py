"""One JSON file and its backup.

Saving is atomic and keeps the content before in ``<name>.bak``. When the file cannot be read, the backup
takes its place, with a warning that says how old it is: progress since then is repeated, changes since
then are undone. The unreadable file is kept as ``<name>.broken``, for whoever wants to look, and so that
it does not become the next backup. When neither can be read nothing is guessed.

A table that is not there is empty in a new store, and lost in an old one. To tell these apart, the names of
tables that were saved are noted in ``kerolox.tables`` beside them.

Members that a newer version wrote and this one does not know are kept and written back.

A digit that flips leaves a table that reads: so what we save ends with the CRC-32 of the rest, as one more
member, which RocketMQ's broker ignores and leaves out when it saves the table.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Mapping
from typing import Any
from zlib import crc32

import msgspec

from kerolox.clock import SYSTEM_CLOCK, Clock
from kerolox.errors import ProtocolError
from kerolox.protocol.json_dialect import dumps, loads
from kerolox.store.disk.files import Files, PathLike
from kerolox.store.errors import StoreError

logger = logging.getLogger(__name__)


CRC = "keroloxCrc32"
NOTES = "kerolox.tables"  # the names of the tables that were saved, one a line
_noting = threading.Lock()  # the file is shared by the tables of a directory


class TableBroken(StoreError):
    """Neither the file nor its backup can be read."""

    def __init__(self, path: str, why: str, backup_why: str) -> None:
        super().__init__(
            f"{path} cannot be read ({why}), nor can {path}.bak ({backup_why}). Restore one of them from a "
            f"copy, or put both aside and go on with what the store itself tells: {mending(path)}",
            path=path,
        )


class TableLost(StoreError):
    """A table that was there is not any more, and nothing else tells what it held."""

    def __init__(self, path: str, why: str, held: str) -> None:
        super().__init__(
            f"{path} was lost: {why}. {held} Restore it from a copy; or go on without it: {mending(path)}",
            path=path,
        )


def mending(path: str) -> str:
    """The command that mends a table."""
    return f"kerolox store repair {os.path.dirname(os.path.dirname(path))} --tables"


class Table:
    """What all tables share: the file. Subclasses say how their content is read and written.

    ``changed`` is set by every change and cleared by :meth:`encode`. After :meth:`load`, ``lost`` says why a
    table that was saved once is not there, and ``from_backup`` whether it is as it was before the last save.
    """

    NAME: str = ""
    DISPENSABLE = False  # figures, or what clients bring again: one that is broken is put aside

    def __init__(self, files: Files, directory: PathLike, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.path = os.path.join(os.fspath(directory), self.NAME)
        self.changed = False
        self.lost = ""
        self.from_backup = False
        self.was_loaded = False
        self._is_noted = False
        self._files = files
        self._clock = clock
        self._saving = threading.Lock()
        self._other: dict[str, Any] = {}  # members of the file that are not ours

    # For subclasses

    def _read(self, tree: Mapping[Any, Any]) -> None:
        """Take over the content; a ProtocolError when it has another shape."""
        raise NotImplementedError

    def _content(self) -> dict[str, Any]:
        """The members to write."""
        raise NotImplementedError

    def _says_nothing(self, tree: Mapping[Any, Any]) -> bool:
        """Whether the content is less than any that was ever saved."""
        return not tree

    # For users

    def load(self) -> bool:
        """Read the file, or its backup; False when there is neither. Waits for the disk."""
        self.was_loaded = self._load()
        return self.was_loaded

    def _load(self) -> bool:
        why = self.take(self.path)
        if why is None:
            return True
        backup = self.path + ".bak"
        backup_why = self.take(backup)
        if backup_why is None:
            self.from_backup = True
            age_s = self._clock.wall_ms() / 1000 - self._files.mtime_s(backup)
            logger.warning(
                "backup_used path=%s reason=%r backup_age_s=%d next='check what was changed since then'",
                self.path,
                why,
                age_s,
            )
            if self._files.exists(self.path):
                self._files.rename(self.path, self.path + ".broken")
            return True
        if why in _ABSENT and backup_why in _ABSENT:
            if self.NAME in noted_tables(self._files, os.path.dirname(self.path)):
                self.lost = f"{why}, and of its .bak: {backup_why}"
            return False
        if not self.DISPENSABLE:
            raise TableBroken(self.path, why, backup_why)
        logger.warning(
            "table_dropped path=%s reason=%r next='nothing: it is only figures, or comes again by itself'",
            self.path,
            why,
        )
        self.put_aside()
        return False

    def put_aside(self) -> list[str]:
        """Let neither file be read again; the new names of what there was."""
        put = []
        for path in (self.path, self.path + ".bak"):
            if self._files.exists(path):
                put.append(path + ".broken")
                self._files.rename(path, put[-1])
        return put

    def take(self, path: str) -> str | None:
        """Read one of the two files; the reason when that is not possible."""
        data = self._files.read_if_exists(path)
        if data is None:
            return _MISSING
        if not data.strip(b"\0 \t\r\n"):
            return _EMPTY
        try:
            _check_crc(data)
            tree = _parse(data)
            if not isinstance(tree, dict):
                raise ProtocolError(f"expected an object, found {type(tree).__name__}")
            if self._says_nothing(tree):
                return _SAYS_NOTHING
            members = self._content().keys()
            if not tree.keys() & members:
                raise ProtocolError(f"expected one of the members {', '.join(members)}")
            self._read(tree)
            self._other.pop(CRC, None)
        except ProtocolError as error:
            return str(error)
        return None

    def copied(self) -> dict[str, Any]:
        """The content as it is now, for :meth:`encode`. On the event loop: it must not change meanwhile."""
        self.changed = False
        return _copied({**self._other, **self._content()})

    def encode(self, content: dict[str, Any] | None = None) -> bytes:
        """The whole table as JSON, or what was copied of it: that takes long for a large one."""
        data = dumps(self.copied() if content is None else content)
        return _with_crc(msgspec.json.format(data, indent=2))

    def save(self, data: bytes | None = None) -> None:
        """Write what :meth:`encode` gave, the old content becoming the backup. For a thread."""
        if data is None:
            data = self.encode()
        try:
            with self._saving:
                directory = os.path.dirname(self.path)
                for made in self._files.make_dirs(directory):
                    self._files.sync_dir(os.path.dirname(made))
                self._files.write_atomic(self.path, data, keep_backup=True)
        except StoreError:
            self.changed = True
            raise
        self._note()

    def _note(self) -> None:
        """Once a life: that there is such a table."""
        if self._is_noted:
            return
        directory = os.path.dirname(self.path)
        try:
            with _noting:
                noted = noted_tables(self._files, directory)
                if self.NAME not in noted:
                    lines = "".join(f"{name}\n" for name in sorted(noted | {self.NAME}))
                    self._files.write_atomic(os.path.join(directory, NOTES), lines.encode())
            self._is_noted = True
        except StoreError as error:
            logger.warning("table_not_noted path=%s error=%r next='tried at the next save'", self.path, error)


def noted_tables(files: Files, directory: PathLike) -> set[str]:
    """The names of the tables that were saved in a directory. Waits for the disk."""
    data = files.read_if_exists(os.path.join(os.fspath(directory), NOTES)) or b""
    return set(data.decode("utf-8", "replace").split())


_MISSING = "it does not exist"
_EMPTY = "it is empty"
_SAYS_NOTHING = "it says nothing"
_ABSENT = (_MISSING, _EMPTY, _SAYS_NOTHING)


def is_absent(why: str | None) -> bool:
    """Whether a reason of :meth:`Table.take` says that there is nothing, instead of something unreadable."""
    return why in _ABSENT


def _with_crc(data: bytes) -> bytes:
    """An object with one more member: the CRC of what it was without."""
    return b'%b,\n  "%b": %d\n}' % (data.removesuffix(b"\n}"), CRC.encode(), crc32(data))


def _check_crc(data: bytes) -> None:
    """Raises ProtocolError when the content is not what was saved. Without a CRC nobody can tell."""
    found = data.rfind(f'"{CRC}"'.encode())
    if found < 0:
        return
    end = data.rfind(b",", 0, found)
    last = _LAST_MEMBER.fullmatch(data, max(0, end))
    if last is None or crc32(data[:end] + b"\n}") != int(last[1]):
        raise ProtocolError(
            f"its content does not fit its checksum: it was damaged, or edited by hand (then remove the "
            f"member {CRC})"
        )


_LAST_MEMBER = re.compile(rb',\s*"%b":\s*(\d{1,10})\s*\}\s*' % CRC.encode())


def _parse(data: bytes) -> Any:
    # Our own files are plain JSON, and may be larger than what a peer may send.
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return loads(data)


def unknown_members(tree: Mapping[Any, Any], known: type[msgspec.Struct]) -> dict[str, Any]:
    """What an object has beyond the members of a class."""
    names = known.__struct_encode_fields__
    return {key: value for key, value in tree.items() if isinstance(key, str) and key not in names}


def unknown_of_all(table: object, known: type[msgspec.Struct]) -> dict[str, dict[str, Any]]:
    """The same for each object of a table of them, where there are any."""
    if not isinstance(table, Mapping):
        return {}
    found = {
        name: unknown_members(tree, known)
        for name, tree in table.items()
        if isinstance(name, str) and isinstance(tree, Mapping)
    }
    return {name: members for name, members in found.items() if members}


def with_unknown(
    table: Mapping[str, msgspec.Struct], unknown: Mapping[str, Mapping[str, Any]]
) -> dict[str, object]:
    """The table to write, objects with unknown members as mappings with them."""
    written: dict[str, object] = dict(table)
    for name, members in unknown.items():
        value = table.get(name)
        if value is not None:
            fields = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
            written[name] = {**members, **{wire: getattr(value, ours) for wire, ours in fields}}
    return written


def _copied(table: dict[Any, Any]) -> dict[Any, Any]:
    """With the tables in it. What else there is does not change."""
    return {key: _copied(member) if isinstance(member, dict) else member for key, member in table.items()}
