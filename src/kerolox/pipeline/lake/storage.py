"""Files at an address: a folder on disk, or a prefix of an object store.

An address is a path, or what fsspec knows: ``s3://bucket/archive``, ``gs://``, ``abfs://``, ``hdfs://``,
``file://``. All paths below are relative to it, with ``/``.

Two promises matter to those who commit through it. :meth:`Storage.put_if_absent` lets one of several writers
win, and tells all others. :meth:`Storage.publish` moves files to their places, and may be repeated after any
crash: what was moved stays, what was not is moved then.

On disk, a file is forced to disk before its name counts, and so are the folders that got a name. Object
stores show a file when it is whole, and have no rename: a file is copied by the store itself, then the first
one is deleted.
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

_ONE_SLASH = re.compile(r"[a-z][a-z0-9+.-]+:/").match  # once it is known that there are not two


class StorageError(KeroloxError):
    """The store behind an address did not do what it was asked."""

    def __init__(self, why: str, *, retriable: bool = False) -> None:
        self.retriable = retriable
        super().__init__(why)


class StoredFile(NamedTuple):
    """A file below an address."""

    path: str
    bytes: int


class Storage(ABC):
    """What archives, replays and tables need of a store. Travels to tasks; nothing is opened before use."""

    is_local = False

    def __init__(self, address: str) -> None:
        self.address = address  # without secrets: goes to logs and errors

    def __str__(self) -> str:
        return self.address

    @property
    def secrets(self) -> list[str]:
        """What no error may tell."""
        return []

    @property
    def driver(self) -> tuple[str, str] | None:
        """The module that must be there for the address, and the extra of kerolox that brings it."""
        return None

    def check_driver(self) -> None:
        """Raises where this process has nothing that could open the address; nothing is opened."""
        return

    def __repr__(self) -> str:  # options may hold secrets
        return f"{type(self).__name__}({self.address!r})"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash(self.address)

    def name(self, path: str) -> str:
        """A file as people write it."""
        return f"{self.address.rstrip('/')}/{path}" if path else self.address

    @property
    @abstractmethod
    def lock_folder(self) -> Path:
        """Where a lock lies that keeps a second process of this machine out."""

    @abstractmethod
    def read(self, path: str) -> bytes:
        """Raises FileNotFoundError."""

    def read_many(self, paths: Sequence[str]) -> Iterator[bytes]:
        """The contents of files, in their order."""
        return map(self.read, paths)

    @abstractmethod
    def put(self, path: str, content: bytes) -> None:
        """Write or replace a file as a whole."""

    @abstractmethod
    def put_if_absent(self, path: str, content: bytes) -> None:
        """Write a file unless it is there. Raises FileExistsError, and then nothing has changed.

        No two writers may have the same content for one name: a request whose answer was lost is repeated,
        and what lies there then is known to be ours by its content.
        """

    @abstractmethod
    def check_decides(self) -> None:
        """Raises OptionError where ``put_if_absent`` would not keep two writers apart."""

    @abstractmethod
    def writer(self, path: str) -> FileWriter:
        """A new file. It is there, and stays, when it was closed."""

    @abstractmethod
    def reader(self, path: str) -> Any:
        """An open file that can seek; close it. Raises FileNotFoundError."""

    @abstractmethod
    def exists(self, path: str) -> bool: ...

    @abstractmethod
    def files(self, folder: str = "") -> list[StoredFile]:
        """All files below a folder, whatever their depth; none of a folder that is not there."""

    @abstractmethod
    def is_empty(self) -> bool:
        """Whether there is nothing at the address, or not even the address."""

    @abstractmethod
    def publish(self, moves: Sequence[tuple[str, str]]) -> list[str]:
        """Move files to their places. Doing it again changes nothing. Returns places without a file."""

    @abstractmethod
    def delete(self, paths: Iterable[str]) -> int:
        """Delete files. Those that are gone are nobody's error. Returns how many could not be deleted."""

    def prune(self, folders: Iterable[str]) -> None:
        """Remove folders that are empty, and those above them. Object stores have none."""
        return

    @abstractmethod
    def clear(self, folder: str) -> None:
        """Delete all below a folder, and the folder."""

    @abstractmethod
    def arrow(self) -> tuple[Any, str]:
        """The same for Arrow: a filesystem, and the address as a path in it."""


class FileWriter:
    """A file that is being written, for ``pyarrow`` and others who write bytes."""

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
        """Nothing: a file counts when it is closed."""

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
        """Leave nothing behind."""
        try:
            if not self.closed:
                self._abandon()
        except Exception:
            pass  # what is wrong with the store was told already
        self._storage.delete([self.path])

    def _abandon(self) -> None:
        # An upload in parts that is not ended stays there, and is paid for.
        if hasattr(self._file, "discard"):
            self._file.discard()
        self._file.closed = True


@contextmanager
def told(storage: Storage, done: str, path: str) -> Iterator[None]:
    """Errors of a driver have many classes and may name options: they become one of ours, without secrets."""
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
    # Drivers say "Forbidden", or that they found no credentials: where they come from is ours to tell.
    keys = isinstance(error, PermissionError) or "credentials" in kind
    next_step = (
        ". Keys come from the environment, the role of the machine, or --storage-option; check that they are "
        "there, and may do that at this address"
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
    """The files at an address; nothing is opened yet. Raises OptionError for what cannot be an address."""
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
                "address", text, "two slashes behind the colon (a Path makes one of them: give text)"
            )
        return LocalFolder(text)
    if "@" in text.split("://", 1)[1].split("/", 1)[0] and not text.startswith(("abfs", "hdfs")):
        hidden = text.split("://", 1)[0] + "://***@" + text.split("@", 1)[1]
        raise OptionError(
            "address", hidden, "no secrets: give them by the environment, --storage-option or a file"
        )
    if not text.split("://", 1)[1].strip("/"):
        raise OptionError("address", text, "a bucket, and a folder in it")
    return RemoteStore(text, options)
