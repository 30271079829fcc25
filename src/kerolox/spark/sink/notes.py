"""Notes of a streaming sink in the checkpoint: the start of each micro-batch.

The folder ``kerolox-sink`` of the checkpoint has a file for each batch. A writer is made before its batch's
tasks start, when the batch stands in Spark's offset log already: the last entry there is its number.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import unquote, urlsplit

import msgspec
from pyarrow import fs

from kerolox.atomic_file import write_atomically
from kerolox.errors import KeroloxError, OptionError
from kerolox.spark.sink.effectively_once import Beginning

FOLDER: Final = "kerolox-sink"
KEPT: Final = 100  # batches, as Spark keeps its own


class Folder(Protocol):
    """Files of a checkpoint."""

    def numbers(self, name: str) -> list[int]:
        """Return the numeric file names in a folder."""

    def read(self, name: str) -> bytes | None: ...

    def write(self, name: str, content: bytes) -> None:
        """Write a file atomically."""

    def remove(self, name: str) -> None: ...


class LocalFolder:
    """Checkpoint on a disk of this machine, or on a shared one."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def numbers(self, name: str) -> list[int]:
        try:
            return [int(found) for found in os.listdir(self._path / name) if found.isdigit()]
        except FileNotFoundError:
            return []

    def read(self, name: str) -> bytes | None:
        try:
            return (self._path / name).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes) -> None:
        write_atomically(self._path / name, content)

    def remove(self, name: str) -> None:
        (self._path / name).unlink(missing_ok=True)


class RemoteFolder:
    """Checkpoint on a file system of pyarrow: an object store, HDFS."""

    def __init__(self, files: fs.FileSystem, path: str) -> None:
        self._files = files
        self._path = path.rstrip("/")

    def numbers(self, name: str) -> list[int]:
        found = self._files.get_file_info(fs.FileSelector(f"{self._path}/{name}", allow_not_found=True))
        return [int(each.base_name) for each in found if each.base_name.isdigit()]

    def read(self, name: str) -> bytes | None:
        try:
            with self._files.open_input_stream(f"{self._path}/{name}") as file:
                return bytes(file.read())
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes) -> None:
        folder = f"{self._path}/{name}".rpartition("/")[0]
        self._files.create_dir(folder, recursive=True)
        # An object appears when it is whole; where files grow, a new name does the same.
        with self._files.open_output_stream(f"{self._path}/{name}.new") as file:
            file.write(content)
        self._files.move(f"{self._path}/{name}.new", f"{self._path}/{name}")

    def remove(self, name: str) -> None:
        try:
            self._files.delete_file(f"{self._path}/{name}")
        except FileNotFoundError:
            pass


def open_folder(checkpoint: str) -> Folder:
    """The checkpoint at a place as Spark writes them. Raises OptionError when it cannot be reached here."""
    scheme = urlsplit(checkpoint).scheme
    if len(scheme) < 2:  # none, or a drive of Windows
        return LocalFolder(checkpoint)
    if scheme == "file":
        return LocalFolder(unquote(urlsplit(checkpoint).path))
    address = "s3" + checkpoint[3:] if scheme in ("s3a", "s3n") else checkpoint
    try:
        return RemoteFolder(*fs.FileSystem.from_uri(address))
    except (OSError, ValueError, NotImplementedError, ImportError) as error:
        raise OptionError(
            "checkpointLocation",
            checkpoint,
            "a place that pyarrow can reach from the driver, since effectively-once keeps notes there "
            f"({error}); or deliveryGuarantee = at-least-once",
        ) from error


class Notes:
    """Starts of the batches of one query."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def batch(self) -> int:
        """Return the number of the running batch."""
        numbers = self._folder.numbers("offsets")
        if not numbers:
            raise KeroloxError(
                "the checkpoint has no offset log: checkpointLocation is not the one this query uses"
            )
        return max(numbers)

    def started_ms(self, batch: int) -> int:
        """Return the time when Spark planned the batch, which does not change when it is run again."""
        text = self._folder.read(f"offsets/{batch}")
        lines = (text or b"").splitlines()
        try:
            return int(msgspec.json.decode(lines[1])["batchTimestampMs"])
        except (IndexError, KeyError, TypeError, ValueError, msgspec.DecodeError):
            return 0

    def query(self) -> str:
        """Return the id of the query, which survives restarts."""
        text = self._folder.read("metadata") or b"{}"
        return str(msgspec.json.decode(text).get("id", ""))

    def find(self, batch: int) -> Beginning | None:
        text = self._folder.read(f"{FOLDER}/{batch}")
        return None if text is None else msgspec.json.decode(text, type=Beginning)

    def keep(self, batch: int, beginning: Beginning) -> None:
        self._folder.write(f"{FOLDER}/{batch}", msgspec.json.encode(beginning))

    def finish(self, batch: int) -> None:
        """Mark a batch as completely sent, so that a repeated run sends nothing."""
        found = self.find(batch)
        if found is not None and not found.done:
            self.keep(batch, msgspec.structs.replace(found, done=True))
        self._folder.remove(f"{FOLDER}/{batch - KEPT}")
