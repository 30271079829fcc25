"""One JSON file and its backup.

Saving is atomic and keeps the content before in ``<name>.bak``. When the file cannot be read, the backup
takes its place, with a warning that says how old it is: progress since then is repeated, changes since
then are undone. The unreadable file is kept as ``<name>.broken``, for whoever wants to look, and so that
it does not become the next backup. When neither can be read nothing is guessed.

Members that a newer version wrote and this one does not know are kept and written back.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from typing import Any

import msgspec

from kerolox.clock import SYSTEM_CLOCK, Clock
from kerolox.errors import ProtocolError
from kerolox.protocol.json_dialect import dumps, loads
from kerolox.store.errors import StoreError
from kerolox.store.files import Files, PathLike

logger = logging.getLogger(__name__)


class TableBroken(StoreError):
    """Neither the file nor its backup can be read."""

    def __init__(self, path: str, why: str, backup_why: str) -> None:
        super().__init__(
            f"{path} cannot be read ({why}), nor can {path}.bak ({backup_why}). Repair one of them, or "
            "remove both to begin with an empty table: then what it held is lost.",
            path=path,
        )


class Table:
    """What all tables share: the file. Subclasses say how their content is read and written.

    ``changed`` is set by every change and cleared by :meth:`encode`.
    """

    NAME: str = ""

    def __init__(self, files: Files, directory: PathLike, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.path = os.path.join(os.fspath(directory), self.NAME)
        self.changed = False
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

    # For users

    def load(self) -> bool:
        """Read the file, or its backup; False when there is neither. Waits for the disk."""
        why = self._take(self.path)
        if why is None:
            return True
        backup = self.path + ".bak"
        backup_why = self._take(backup)
        if backup_why is None:
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
            return False
        raise TableBroken(self.path, why, backup_why)

    def _take(self, path: str) -> str | None:
        """Read one of the two; the reason when that is not possible."""
        data = self._files.read_if_exists(path)
        if data is None:
            return _MISSING
        if not data.strip(b"\0 \t\r\n"):
            return _EMPTY
        try:
            tree = _parse(data)
            if not isinstance(tree, dict):
                raise ProtocolError(f"expected an object, found {type(tree).__name__}")
            self._read(tree)
        except ProtocolError as error:
            logger.error("table_unreadable path=%s size=%d error=%r", path, len(data), str(error))
            return str(error)
        return None

    def encode(self) -> bytes:
        """The whole table as JSON. On the event loop, as it must not change meanwhile."""
        self.changed = False
        data = dumps({**self._other, **self._content()})
        return msgspec.json.format(data, indent=2)

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


_MISSING = "it does not exist"
_EMPTY = "it is empty"
_ABSENT = (_MISSING, _EMPTY)


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
