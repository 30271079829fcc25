"""The key-value table of a name server: namespace → key → value, stored in one JSON file.

Admin tools use it for the queue order of ordered topics (namespace ``ORDER_TOPIC_CONFIG``). It is small and
changes rarely, so every change rewrites the file.
"""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

from kerolox.atomic_file import LatestSave
from kerolox.errors import InvalidRequest, KeroloxError, ProtocolError
from kerolox.observers import Observers
from kerolox.protocol.json_dialect import dumps, loads
from kerolox.protocol.reserved import ORDER_TOPIC_CONFIG as ORDER_TOPIC_CONFIG
from kerolox.unsaved import NotSaved, Then, Unsaved

log = logging.getLogger(__name__)

NAMESPACES_MAX = 1000
KEY_LENGTH_MAX = 1000
VALUE_LENGTH_MAX = 64 << 10
CHARACTERS_MAX = 4 << 20  # of the whole table

KvTable = dict[str, dict[str, str]]


class KvFileBroken(KeroloxError):
    """An invalid key-value file. It is not changed."""

    def __init__(self, path: Path, what: object) -> None:
        self.path = path
        super().__init__(
            f"the key-value file {path} cannot be read: {what}. It was not changed: repair it, restore "
            "a backup, or move it away to start with an empty table."
        )


class KvConfig:
    """The key-value table and its file."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._tables: KvTable = {}
        self._characters = 0  # of all names and values
        self._file = LatestSave(self.path)
        self._unsaved: Unsaved[tuple[str, str], str] = Unsaved(self._put_back, self._save)
        self.on_change: Observers[[str, str]] = Observers("key changed")  # called with namespace and key

    async def load(self) -> None:
        """Read the file; a missing file is an empty table. Raises KvFileBroken."""
        self._tables = await asyncio.to_thread(read_tables, self.path)
        count = sum(map(len, self._tables.values()))
        self._characters = sum(
            len(namespace) + len(key) + len(value)
            for namespace, table in self._tables.items()
            for key, value in table.items()
        )
        log.info("kv_loaded path=%s namespaces=%d values=%d", self.path, len(self._tables), count)

    @property
    def namespaces(self) -> list[str]:
        return sorted(self._tables)

    def value(self, namespace: str, key: str) -> str | None:
        table = self._tables.get(namespace)
        return None if table is None else table.get(key)

    def values(self, namespace: str) -> dict[str, str] | None:
        """Return all values of a namespace. A namespace whose last key was deleted still exists, as in
        RocketMQ."""
        return self._tables.get(namespace)

    async def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value. It is in effect at once; the method returns when it is on disk.

        Raises NotSaved if it could not be saved and was undone, and InvalidRequest if the table would exceed
        its limits: every change writes the whole table.
        """
        self._check_room(namespace, key, value)
        before = self.value(namespace, key)
        if before != value:
            self._set(namespace, key, value)
            log.info("kv_put namespace=%r key=%r", namespace, key)
            self._unsaved.changed((namespace, key), before)
        await self._unsaved.saved((namespace, key))

    async def delete(self, namespace: str, key: str) -> None:
        """Delete a key; like :meth:`put` in effect at once, and on disk or undone at the end."""
        before = self.value(namespace, key)
        if before is not None:
            self._set(namespace, key, None)
            log.info("kv_deleted namespace=%r key=%r", namespace, key)
            self._unsaved.changed((namespace, key), before)
        await self._unsaved.saved((namespace, key))

    def _check_room(self, namespace: str, key: str, value: str) -> None:
        if max(len(namespace), len(key)) > KEY_LENGTH_MAX or len(value) > VALUE_LENGTH_MAX:
            raise InvalidRequest(
                f"the namespace has {len(namespace)}, the key {len(key)}, the value {len(value)} characters: "
                f"the limits are {KEY_LENGTH_MAX} (KEY_LENGTH_MAX) and {VALUE_LENGTH_MAX} (VALUE_LENGTH_MAX)"
            )
        if namespace not in self._tables and len(self._tables) >= NAMESPACES_MAX:
            raise InvalidRequest(
                f"{len(self._tables)} namespaces, the limit is {NAMESPACES_MAX} (NAMESPACES_MAX)"
            )
        characters = self._characters + len(namespace) + len(key) + len(value)
        if characters > CHARACTERS_MAX:
            raise InvalidRequest(
                f"the table would have {characters} characters, the limit is "
                f"{CHARACTERS_MAX} (CHARACTERS_MAX). Delete unused keys."
            )

    async def close(self) -> None:
        """Wait until the last change is on disk."""
        await self._file.close()

    def _set(self, namespace: str, key: str, value: str | None) -> None:
        table = self._tables.setdefault(namespace, {})
        before = table.pop(key, None)
        if before is not None:
            self._characters -= len(namespace) + len(key) + len(before)
        if value is not None:
            self._characters += len(namespace) + len(key) + len(value)
            table[key] = value
        self.on_change(namespace, key)

    def _put_back(self, key: tuple[str, str], before: str | None) -> None:
        self._set(*key, before)

    def _save(self, then: Then) -> None:
        def ended(saved: asyncio.Future[None]) -> None:
            error = saved.exception()
            if error is not None:
                log.error(
                    "kv_save_failed path=%s error=%r next='the change was undone and rejected; free disk "
                    "space or correct the permissions, and repeat it'",
                    self.path,
                    str(error),
                )
            then(None if error is None else NotSaved(self.path, error))

        self._file.save(dumps({"configTable": self._tables})).add_done_callback(ended)


def read_tables(path: Path) -> KvTable:
    """Return the tables of a file; none if the file does not exist. Blocking. Raises KvFileBroken."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise KvFileBroken(path, error) from error
    if not raw.strip():
        log.warning("kv_file_empty path=%s next='starting with an empty table'", path)
        return {}
    try:
        content = loads(raw)
    except ProtocolError as error:
        raise KvFileBroken(path, error) from error
    tables = content.get("configTable", {}) if isinstance(content, dict) else None
    if not isinstance(tables, dict):
        raise KvFileBroken(path, 'expected an object with a "configTable" object')
    for namespace, table in tables.items():
        if not isinstance(table, dict):
            raise KvFileBroken(path, f"expected an object of texts for namespace {namespace!r}")
        for key, value in table.items():
            if not isinstance(value, str):
                raise KvFileBroken(path, f"expected text for {namespace!r} {key!r}, found {value!r}")
    return tables
