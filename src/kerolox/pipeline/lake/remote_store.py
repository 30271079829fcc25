"""Storage of archives and tables in object stores and other file systems of fsspec.

An object store shows a file only when it is complete. It has no rename: the store copies a file itself, then
the original is deleted. Of two writers, a conditional put lets one win: ``If-None-Match`` on S3 and Azure,
the generation of an object on Google Cloud Storage.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from kerolox.errors import KeroloxError, OptionError
from kerolox.own_folder import own_folder
from kerolox.pipeline.lake.storage import FileWriter, Storage, StorageError, StoredFile, told

# fsspec's driver for each extra, as a module and as a package.
DRIVERS: Final = {"s3": "s3fs", "gcs": "gcsfs", "azure": "adlfs"}
# Extra of kerolox for each protocol. All of these stores support a conditional put.
EXTRAS: Final = {
    "s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "abfs": "azure", "abfss": "azure", "az": "azure",
}  # fmt: skip
DECIDING: Final = frozenset(EXTRAS)
TRIES: Final = 3
RETRY_S: Final = 0.5
AT_ONCE: Final = 16  # parallel requests to an object store
BLOCK_BYTES: Final = 8 << 20  # block size of uploads; S3 accepts 10,000 blocks per file


T = TypeVar("T")


class RemoteStore(Storage):
    """Storage in an object store or another file system of fsspec."""

    def __init__(self, address: str, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(address.rstrip("/"))
        self.options = dict(options or {})
        self.protocol = address.split("://", 1)[0].lower()

    @property
    def secrets(self) -> list[str]:
        # Short values are not secrets, and replacing them would make errors unreadable.
        found: list[str] = []

        def look(value: Any) -> None:
            if isinstance(value, Mapping):
                for each in value.values():
                    look(each)
            elif isinstance(value, str) and len(value) >= 6 and "://" not in value:
                found.append(value)

        look(self.options)
        return found

    @property
    def driver(self) -> tuple[str, str] | None:
        extra = EXTRAS.get(self.protocol, "")
        return (DRIVERS[extra], extra) if extra else None

    def check_driver(self) -> None:
        self._fs()

    def _fs(self) -> Any:
        """Return the driver. fsspec caches one per process and set of options."""
        try:
            from fsspec.core import url_to_fs

            # Other processes write there too, so cached listings would be outdated.
            options = {"use_listings_cache": False, **self.options}
            fs, _ = url_to_fs(self.address, **options)
        except ImportError as error:
            raise self._driver_missing(error) from None
        except ValueError as error:
            if self.protocol in EXTRAS:
                raise StorageError(f"{self.address} cannot be opened: {error}") from None
            raise OptionError(
                "address", self.address, f"a folder, or one of {', '.join(sorted(EXTRAS))}, hdfs://, file://"
            ) from None
        return fs

    def _driver_missing(self, error: ImportError) -> KeroloxError:
        extra = EXTRAS.get(self.protocol, "spark")
        return StorageError(
            f"{self.address} needs a driver that is not installed ({error.name or error}). "
            f"Install it: pip install 'kerolox[{extra}]', on executors as well"
        )

    def _path(self, path: str) -> str:
        stripped = self.address.split("://", 1)[1]
        if self.protocol == "hdfs":
            stripped = urlsplit(self.address).path
        return f"{stripped}/{path}" if path else stripped

    @property
    def lock_folder(self) -> Path:
        named = sha256(self.address.encode()).hexdigest()[:24]
        return own_folder("archives", named)

    def read(self, path: str) -> bytes:
        with told(self, "read", path):
            return bytes(self._fs().cat_file(self._path(path)))

    def read_range(self, path: str, start: int, end: int) -> bytes:
        """Return these bytes by one request; fewer at the end of the file. Raises FileNotFoundError."""
        with told(self, "read", path):
            return bytes(self._fs().cat_file(self._path(path), start=start, end=end))

    def read_many(self, paths: Sequence[str]) -> Iterator[bytes]:
        for first in range(0, len(paths), AT_ONCE):
            yield from self._each(self.read, paths[first : first + AT_ONCE])

    def put(self, path: str, content: bytes) -> None:
        with told(self, "written", path):
            self._fs().pipe_file(self._path(path), content)

    def put_if_absent(self, path: str, content: bytes) -> None:
        for left in reversed(range(TRIES)):
            try:
                with told(self, "written", path):
                    self._fs().pipe_file(self._path(path), content, mode="create")
                return
            except FileExistsError:
                # A request whose answer was lost is repeated: then the file has this content already.
                if self.read(path) != content:
                    raise FileExistsError(self.name(path)) from None
                return
            except StorageError:  # S3 answers conflict during another request for the name
                if not left:
                    raise
                time.sleep(RETRY_S)

    def check_decides(self) -> None:
        instead = "Write a Delta table (--delta) or an Iceberg table there: these have their own commits"
        if self.protocol not in DECIDING:
            raise OptionError(
                "to", self.address,
                f"a store that can refuse to overwrite ({', '.join(sorted(DECIDING))}). {instead}",
            )  # fmt: skip
        probe = f"_kerolox/probe-{os.getpid()}-{os.urandom(6).hex()}"
        try:
            self.put_if_absent(probe, b"1")
            try:
                self.put_if_absent(probe, b"2")
            except FileExistsError:
                return
        finally:
            self.delete([probe])
        raise OptionError("to", self.address, f"a store that refuses to overwrite; this one did. {instead}")

    def writer(self, path: str) -> FileWriter:
        with told(self, "written", path):
            return FileWriter(self._fs().open(self._path(path), "wb", block_size=BLOCK_BYTES), self, path)

    def reader(self, path: str) -> Any:
        with told(self, "read", path):
            return self._fs().open(self._path(path), "rb", block_size=BLOCK_BYTES)

    def exists(self, path: str) -> bool:
        with told(self, "looked for", path):
            return bool(self._fs().exists(self._path(path)))

    def files(self, folder: str = "") -> list[StoredFile]:
        with told(self, "listed", folder):
            try:
                found = self._fs().find(self._path(folder), detail=True)
            except FileNotFoundError:
                return []
        base = self._path("").strip("/") + "/"
        listed = ((str(path).lstrip("/"), about) for path, about in found.items())
        return sorted(
            StoredFile(path.removeprefix(base), int(about.get("size") or 0))
            for path, about in listed
            if about.get("type") == "file" and path.startswith(base)
        )

    def names(self, folder: str = "") -> dict[str, int | None]:
        """Return the entries of a folder with sizes of files, None for folders; {} if it does not exist."""
        with told(self, "listed", folder):
            try:
                found = self._fs().ls(self._path(folder), detail=True)
            except FileNotFoundError:
                return {}
        base = self._path(folder).strip("/") + "/"
        listed = ((str(about["name"]).strip("/"), about) for about in found)
        return {
            path.removeprefix(base): int(about.get("size") or 0) if about.get("type") == "file" else None
            for path, about in listed
            if path.startswith(base)
        }

    def is_empty(self) -> bool:
        with told(self, "listed", ""):
            try:
                return not self._fs().ls(self._path(""), detail=False)
            except FileNotFoundError:
                return True

    def publish(self, moves: Sequence[tuple[str, str]]) -> list[str]:
        def move(pair: tuple[str, str]) -> str | None:
            staged, path = pair
            return None if self._move(staged, path) else path

        return [path for path in self._each(move, moves) if path is not None]

    def _move(self, staged: str, path: str) -> bool:
        """Move a file to its place; False if it is in neither place. Safe if another run does the same."""
        fs = self._fs()
        with told(self, "moved", staged):
            try:
                fs.cp_file(self._path(staged), self._path(path))
            except FileNotFoundError:
                return bool(fs.exists(self._path(path)))
        self.delete([staged])
        return True

    def delete(self, paths: Iterable[str]) -> int:
        def remove(path: str) -> int:
            try:
                self._fs().rm_file(self._path(path))
            except FileNotFoundError:
                pass
            except Exception:
                return 1
            return 0

        return sum(self._each(remove, list(paths)))

    def clear(self, folder: str) -> None:
        self.delete([file.path for file in self.files(folder)])

    def arrow(self) -> tuple[Any, str]:
        from pyarrow.fs import FSSpecHandler, PyFileSystem

        return PyFileSystem(FSSpecHandler(self._fs())), self._path("")

    def _each(self, work: Callable[[Any], T], items: Sequence[Any]) -> list[T]:
        if len(items) < 2:
            return [work(item) for item in items]
        with ThreadPoolExecutor(min(AT_ONCE, len(items))) as pool:
            return list(pool.map(work, items))
