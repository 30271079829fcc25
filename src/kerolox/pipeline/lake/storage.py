"""Files at an address: a folder on disk, or a prefix of an object store.

An address is a path, or an address of fsspec: ``s3://bucket/archive``, ``gs://``, ``abfs://``, ``hdfs://``,
``file://``. All paths below are relative to it, with ``/``.

Commits rely on two guarantees. :meth:`Storage.put_if_absent` lets exactly one of several writers win, and
raises an error for the others. :meth:`Storage.publish` moves files to their places, and may be repeated
after any crash: files already moved stay, the others are moved then.

On disk, a file is forced to disk before it gets its final name, and then the folder with the name as well.
Object stores show a file only when it is complete, and have no rename: the store copies a file itself, then
the original is deleted.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from kerolox.errors import KeroloxError, OptionError

_ONE_SLASH = re.compile(r"[a-z][a-z0-9+.-]+:/").match  # checked only if the text has no ://


class StorageError(KeroloxError):
    """An operation of the store behind an address failed."""

    def __init__(self, why: str, *, retriable: bool = False) -> None:
        self.retriable = retriable
        super().__init__(why)


class StoredFile(NamedTuple):
    """File below an address."""

    path: str
    bytes: int


class Storage(ABC):
    """Storage of archives, replays and tables. It is pickled to tasks; nothing is opened before use."""

    is_local = False

    def __init__(self, address: str) -> None:
        self.address = address  # without secrets: appears in logs and errors

    def __str__(self) -> str:
        return self.address

    @property
    def secrets(self) -> list[str]:
        """Secrets that no error may contain."""
        return []

    @property
    def driver(self) -> tuple[str, str] | None:
        """Module required for the address, and the extra of kerolox that installs it."""
        return None

    def check_driver(self) -> None:
        """Raise an error if the driver for the address is not installed. Opens nothing."""
        return

    def __repr__(self) -> str:  # options may hold secrets
        return f"{type(self).__name__}({self.address!r})"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash(self.address)

    def name(self, path: str) -> str:
        """Return the full path or address of a file."""
        return f"{self.address.rstrip('/')}/{path}" if path else self.address

    @property
    @abstractmethod
    def lock_folder(self) -> Path:
        """Folder of the lock that keeps out a second process of this machine."""

    @abstractmethod
    def read(self, path: str) -> bytes:
        """Read a file. Raises FileNotFoundError."""

    def read_many(self, paths: Sequence[str]) -> Iterator[bytes]:
        """Return the contents of files, in order."""
        return map(self.read, paths)

    @abstractmethod
    def put(self, path: str, content: bytes) -> None:
        """Write or replace a file as a whole."""

    @abstractmethod
    def put_if_absent(self, path: str, content: bytes) -> None:
        """Write a file unless it exists. Raises FileExistsError, and then nothing has changed.

        Two writers must not write the same content under one name: a request whose answer was lost is
        repeated, and an existing file with this content is taken as its result.
        """

    @abstractmethod
    def check_decides(self) -> None:
        """Raise OptionError if ``put_if_absent`` is not atomic in this store."""

    @abstractmethod
    def writer(self, path: str) -> FileWriter:
        """Open a new file. It exists, durably, once it is closed."""

    @abstractmethod
    def reader(self, path: str) -> Any:
        """Open a seekable file; the caller closes it. Raises FileNotFoundError."""

    @abstractmethod
    def exists(self, path: str) -> bool: ...

    @abstractmethod
    def files(self, folder: str = "") -> list[StoredFile]:
        """Return all files below a folder at any depth; none if the folder does not exist."""

    @abstractmethod
    def is_empty(self) -> bool:
        """Return True if the address has no files or does not exist."""

    @abstractmethod
    def publish(self, moves: Sequence[tuple[str, str]]) -> list[str]:
        """Move files to their places. Idempotent. Returns the places for which no file exists."""

    @abstractmethod
    def delete(self, paths: Iterable[str]) -> int:
        """Delete files; missing files are no error. Returns the number that could not be deleted."""

    def prune(self, folders: Iterable[str]) -> None:
        """Remove empty folders and their empty parents. Object stores have no folders."""
        return

    @abstractmethod
    def clear(self, folder: str) -> None:
        """Delete a folder with all its files."""

    @abstractmethod
    def arrow(self) -> tuple[Any, str]:
        """Return Arrow's filesystem for the storage, and the address as a path in it."""


class FileWriter:
    """File that is being written, for ``pyarrow`` and other writers of bytes."""

    def __init__(self, file: Any, storage: Storage, path: str) -> None:
        self._file = file
        self._storage = storage
        self.path = path

    @property
    def closed(self) -> bool:
        return bool(self._file.closed)

    def write(self, data: Any) -> int:
        with told(self._storage, "written", self.path):
            return int(self._file.write(data))

    def tell(self) -> int:
        return int(self._file.tell())

    def flush(self) -> None:
        """Do nothing: a file is complete only when it is closed."""

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def __enter__(self) -> FileWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def close(self) -> None:
        if not self.closed:
            with told(self._storage, "written", self.path):
                self._finish()

    def _finish(self) -> None:
        self._file.close()

    def discard(self) -> None:
        """Abandon the file and delete it."""
        try:
            if not self.closed:
                self._abandon()
        except Exception:
            pass  # the caller is already handling an error of the store
        self._storage.delete([self.path])

    def _abandon(self) -> None:
        # The parts of an unfinished upload would stay in the store and cost money.
        if hasattr(self._file, "discard"):
            self._file.discard()
        self._file.closed = True


@contextmanager
def told(storage: Storage, done: str, path: str) -> Iterator[None]:
    """Turn errors of drivers, which have many classes and may contain secrets, into StorageError."""
    try:
        yield
    except (KeroloxError, FileNotFoundError, FileExistsError):
        raise
    except OSError as error:
        if storage.is_local:
            raise
        raise _error(storage, done, path, error) from None
    except Exception as error:
        raise _error(storage, done, path, error) from None


def _error(storage: Storage, done: str, path: str, error: Exception) -> StorageError:
    text = without_secrets(storage, " ".join(str(error).split()) or type(error).__name__)
    kind = f"{type(error).__module__}.{type(error).__name__}".lower()
    passing = isinstance(error, (TimeoutError, ConnectionError)) or any(
        word in kind for word in ("timeout", "connect", "slowdown")
    )
    # Drivers only report "Forbidden" or missing credentials, so add where credentials come from.
    keys = isinstance(error, PermissionError) or "credentials" in kind
    next_step = (
        ". Keys come from the environment, the role of the machine, or --storage-option; check that they are "
        "set, and have the permission for this address"
    )
    return StorageError(
        f"{storage.name(path)} could not be {done}: {text}{next_step if keys else ''}", retriable=passing
    )


def without_secrets(storage: Storage, text: str) -> str:
    for secret in storage.secrets:
        text = text.replace(secret, "***")
    return text


def open_storage(
    address: str | os.PathLike[str] | Storage, options: Mapping[str, Any] | None = None
) -> Storage:
    """Return the storage at an address without opening it. Raises OptionError for an invalid address."""
    from kerolox.pipeline.lake.local_folder import LocalFolder
    from kerolox.pipeline.lake.remote_store import RemoteStore

    if isinstance(address, Storage):
        return address
    text = os.fspath(address)
    if text.startswith("file:"):
        text = urlsplit(text).path
    if "://" not in text:
        if not text:
            raise OptionError("address", text, "a folder, or an address such as s3://bucket/folder")
        if _ONE_SLASH(text):
            raise OptionError(
                "address", text, "two slashes after the colon (a Path removes one of them: pass text)"
            )
        return LocalFolder(text)
    if "@" in text.split("://", 1)[1].split("/", 1)[0] and not text.startswith(("abfs", "hdfs")):
        hidden = text.split("://", 1)[0] + "://***@" + text.split("@", 1)[1]
        raise OptionError(
            "address", hidden, "no secrets: pass them by the environment, --storage-option or a file"
        )
    if not text.split("://", 1)[1].strip("/"):
        raise OptionError("address", text, "a bucket and a folder in it")
    return RemoteStore(text, options)
