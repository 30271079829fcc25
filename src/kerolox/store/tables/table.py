"""JSON file with a backup.

A save is atomic and keeps the previous content in ``<name>.bak``. If the file cannot be read, the backup
takes its place, with a warning that reports its age: progress since then is repeated, changes since then are
lost. The unreadable file is kept as ``<name>.broken``, for inspection, and so that it does not become the
next backup. If neither can be read, the load fails.

A missing table is empty in a new store, and lost in an old one. To distinguish these, the names of saved
tables are noted in ``kerolox.tables`` beside them.

Members that a newer version wrote and this one does not know are kept and written back.

A flipped digit may leave a readable table. Saved tables therefore end with the CRC-32 of the rest, as one
more member, which RocketMQ's broker ignores and drops when it saves the table.
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
NOTES = "kerolox.tables"  # names of the saved tables, one per line
_noting = threading.Lock()  # the tables of a directory share the file


class TableBroken(StoreError):
    """Table whose file and backup are both unreadable."""

    def __init__(self, path: str, why: str, backup_why: str) -> None:
        super().__init__(
            f"cannot read {path} ({why}) and {path}.bak ({backup_why}). Restore one of them from a "
            f"backup, or rebuild the table from the rest of the store: {mending(path)}",
            path=path,
        )


class TableLost(StoreError):
    """Table that was saved once and no longer exists, and cannot be rebuilt."""

    def __init__(self, path: str, why: str, held: str) -> None:
        super().__init__(
            f"{path} was lost: {why}. {held} Restore it from a backup, or continue without it: "
            f"{mending(path)}",
            path=path,
        )


def mending(path: str) -> str:
    """Return the command that repairs a table."""
    return f"kerolox store repair {os.path.dirname(os.path.dirname(path))} --tables"


class Table:
    """Common part of all tables: the file. Subclasses define how their content is read and written.

    ``changed`` is set by every change and cleared by :meth:`encode`. After :meth:`load`, ``lost`` is the
    reason why a saved table does not exist, and ``from_backup`` is True if the content is that of the save
    before the last.
    """

    NAME: str = ""
    DISPENSABLE = False  # statistics, or data that clients send again: a broken table is moved aside

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
        self._other: dict[str, Any] = {}  # unknown members of the file

    # For subclasses

    def _read(self, tree: Mapping[Any, Any]) -> None:
        """Read the content; raise ProtocolError if its structure is wrong."""
        raise NotImplementedError

    def _content(self) -> dict[str, Any]:
        """Return the members to write."""
        raise NotImplementedError

    def _says_nothing(self, tree: Mapping[Any, Any]) -> bool:
        """Return True if the content is less than any saved content."""
        return not tree

    # For users

    def load(self) -> bool:
        """Read the file, or its backup; return False if neither exists. Wait for the disk."""
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
                "backup_used path=%s reason=%r backup_age_s=%d next='check the changes made since then'",
                self.path,
                why,
                age_s,
            )
            if self._files.exists(self.path):
                self._files.rename(self.path, self.path + ".broken")
            return True
        if why in _ABSENT and backup_why in _ABSENT:
            if self.NAME in noted_tables(self._files, os.path.dirname(self.path)):
                self.lost = f"{why}; its .bak: {backup_why}"
            return False
        if not self.DISPENSABLE:
            raise TableBroken(self.path, why, backup_why)
        logger.warning(
            "table_dropped path=%s reason=%r next='no action needed: its content is rebuilt automatically, "
            "or is only statistics'",
            self.path,
            why,
        )
        self.put_aside()
        return False

    def put_aside(self) -> list[str]:
        """Move the file and its backup aside; return their new names."""
        put = []
        for path in (self.path, self.path + ".bak"):
            if self._files.exists(path):
                put.append(path + ".broken")
                self._files.rename(path, put[-1])
        return put

    def take(self, path: str) -> str | None:
        """Read one of the two files; return the reason if that fails."""
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
        """Return a copy of the content for :meth:`encode`. Runs on the event loop: the content must not
        change meanwhile."""
        self.changed = False
        return _copied({**self._other, **self._content()})

    def encode(self, content: dict[str, Any] | None = None) -> bytes:
        """Return the whole table, or a copy of its content, as JSON. Slow for a large table."""
        data = dumps(self.copied() if content is None else content)
        return _with_crc(msgspec.json.format(data, indent=2))

    def save(self, data: bytes | None = None) -> None:
        """Write the encoded table; the old content becomes the backup. Runs in a thread."""
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
        """Note once per process that the table exists."""
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
            logger.warning(
                "table_not_noted path=%s error=%r next='no action needed: the next save retries'",
                self.path,
                error,
            )


def noted_tables(files: Files, directory: PathLike) -> set[str]:
    """Return the names of the tables that were saved in a directory. Wait for the disk."""
    data = files.read_if_exists(os.path.join(os.fspath(directory), NOTES)) or b""
    return set(data.decode("utf-8", "replace").split())


_MISSING = "it does not exist"
_EMPTY = "it is empty"
_SAYS_NOTHING = "it says nothing"
_ABSENT = (_MISSING, _EMPTY, _SAYS_NOTHING)


def is_absent(why: str | None) -> bool:
    """Return True if a reason of :meth:`Table.take` means that there is no content, rather than an unreadable
    one."""
    return why in _ABSENT


def _with_crc(data: bytes) -> bytes:
    """Return an object with one more member: the CRC of its original text."""
    return b'%b,\n  "%b": %d\n}' % (data.removesuffix(b"\n}"), CRC.encode(), crc32(data))


def _check_crc(data: bytes) -> None:
    """Raise ProtocolError if the content does not match its CRC. Content without a CRC is not checked."""
    found = data.rfind(f'"{CRC}"'.encode())
    if found < 0:
        return
    end = data.rfind(b",", 0, found)
    last = _LAST_MEMBER.fullmatch(data, max(0, end))
    if last is None or crc32(data[:end] + b"\n}") != int(last[1]):
        raise ProtocolError(
            f"its content does not match its checksum: it was damaged, or edited by hand (then remove the "
            f"member {CRC})"
        )


_LAST_MEMBER = re.compile(rb',\s*"%b":\s*(\d{1,10})\s*\}\s*' % CRC.encode())


def _parse(data: bytes) -> Any:
    # Files of kerolox are plain JSON, and may be larger than a peer's message.
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return loads(data)


def unknown_members(tree: Mapping[Any, Any], known: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the members of an object that a class does not have."""
    names = known.__struct_encode_fields__
    return {key: value for key, value in tree.items() if isinstance(key, str) and key not in names}


def unknown_of_all(table: object, known: type[msgspec.Struct]) -> dict[str, dict[str, Any]]:
    """Return the unknown members of each object in a table of them, where there are any."""
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
    """Return the table to write, with objects that have unknown members as mappings."""
    written: dict[str, object] = dict(table)
    for name, members in unknown.items():
        value = table.get(name)
        if value is not None:
            fields = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
            written[name] = {**members, **{wire: getattr(value, ours) for wire, ours in fields}}
    return written


def _copied(table: dict[Any, Any]) -> dict[Any, Any]:
    """Return a copy that includes nested tables. Other members do not change."""
    return {key: _copied(member) if isinstance(member, dict) else member for key, member in table.items()}
