"""Progress of broadcasting consumers, in files of this machine.

::

    ~/.rocketmq_offsets/10.0.0.5@DEFAULT/watchers/offsets.json      RocketMQ's file, of the first cluster
                                                  offsets-2.json    of the next one
                                                  clusters.json     file → name servers of its cluster
                                                  offsets.json.lock held while a consumer uses the file

RocketMQ has one file for a client name and a group, whatever the cluster: a consumer at a new cluster would
skip its messages. So each cluster has a file, found by any name server that is the same as before. An
offset behind the end of its queue belongs to another queue and is refused. The client name is that of the
host: processes of one host that broadcast in one group each need a ``ClientOptions(instance=...)``.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kerolox.atomic_file import write_atomically
from kerolox.client.cluster.queue_calls import QueueCalls
from kerolox.client.messages import Queue
from kerolox.errors import KeroloxError, ProtocolError
from kerolox.protocol.bodies.body import Body, MessageQueue

log = logging.getLogger(__name__)

DIRECTORY = ".rocketmq_offsets"
DIRECTORY_VARIABLE = "KEROLOX_OFFSETS_DIRECTORY"
FIRST = "offsets.json"
CLUSTERS = "clusters.json"


class FileOffsets:
    """Offsets of one group of one client name, in RocketMQ's form."""

    def __init__(
        self, calls: QueueCalls, client_id: str, group: str, nameservers: Sequence[str], directory: str = ""
    ) -> None:
        root = directory or os.environ.get(DIRECTORY_VARIABLE) or os.path.expanduser(f"~/{DIRECTORY}")
        self.folder = Path(root) / client_id / group
        self.path = self.folder / FIRST  # until the file of the cluster is known
        self._calls = calls
        self._nameservers = frozenset(nameservers)
        self._known: dict[Queue, int] | None = None
        self._opening = asyncio.Lock()
        self._writing = asyncio.Lock()  # of two saves at once the later has all offsets
        self._lock: Any = None

    async def load(self, queue: Queue) -> int | None:
        """Return the offset of a queue; None if there is none, or one that the queue cannot have."""
        offset = (await self._offsets()).get(queue)
        if offset is None:
            return None
        end = await self._calls.max_offset(queue)
        if offset <= end:
            return offset
        log.warning(
            "offset_refused queue=%s offset=%d end=%d path=%s next='the file is of another queue of this "
            "name; the consumer starts as its options say'",
            queue, offset, end, self.path,
        )  # fmt: skip
        return None

    async def save(self, offsets: Mapping[Queue, int]) -> dict[Queue, KeroloxError]:
        known = await self._offsets()
        known.update(offsets)
        async with self._writing:
            content = encode_offsets(known)
            try:
                await asyncio.get_running_loop().run_in_executor(None, self._write, content)
            except OSError as error:
                log.warning("offsets_not_saved path=%s error=%r", self.path, str(error))
                failure = KeroloxError(f"progress could not be saved in {self.path}: {error}")
                return dict.fromkeys(offsets, failure)
        return {}

    def listener(self, queue: Queue) -> object:
        return None

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    # --- files ----------------------------------------------------------------------------------------

    async def _offsets(self) -> dict[Queue, int]:
        async with self._opening:
            if self._known is None:
                self._known = await asyncio.get_running_loop().run_in_executor(None, self._open)
            return self._known

    def _open(self) -> dict[Queue, int]:
        """Find the file of this cluster, lock it, and read it."""
        clusters = self._clusters()
        name, is_new = file_of_cluster(clusters, self._nameservers)
        self.path = self.folder / name
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if is_new or self._nameservers - set(clusters[name]):
                clusters[name] = sorted({*clusters.get(name, ()), *self._nameservers})
                write_atomically(self.folder / CLUSTERS, json.dumps(clusters, indent=2).encode())
            self._take_lock()
        except OSError as error:
            log.warning("offsets_not_saved path=%s error=%r", self.path, str(error))
        return self._read()

    def _clusters(self) -> dict[str, list[str]]:
        path = self.folder / CLUSTERS
        try:
            found = json.loads(path.read_bytes())
            return {str(name): [str(one) for one in servers] for name, servers in found.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, AttributeError, TypeError) as error:
            raise KeroloxError(
                f"{path} cannot be read ({error}): which file has the progress of this cluster is unknown. "
                f"Next: restore it, or delete it; then {FIRST} is taken for this cluster's"
            ) from error

    def _take_lock(self) -> None:
        try:
            import fcntl
        except ImportError:  # Windows
            return
        lock = open(f"{self.path}.lock", "ab")  # noqa: SIM115 - held until close()
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            log.warning(
                "offsets_shared path=%s next='another consumer uses this file, and after a restart one "
                "of them may skip messages: give each a ClientOptions(instance=...) of its own'",
                self.path,
            )
            return
        self._lock = lock

    def _read(self) -> dict[Queue, int]:
        for path in (self.path, self._backup):
            try:
                text = path.read_bytes()
            except FileNotFoundError:
                continue
            try:
                return decode_offsets(text)
            except ProtocolError as error:
                log.warning(
                    "offsets_unreadable path=%s error=%r next='the backup is tried'", path, str(error)
                )
        return {}

    @property
    def _backup(self) -> Path:
        return self.path.with_suffix(".json.bak")

    def _write(self, content: bytes) -> None:
        if self.path.exists():
            write_atomically(self._backup, self.path.read_bytes())
        write_atomically(self.path, content)


def file_of_cluster(clusters: Mapping[str, Sequence[str]], nameservers: frozenset[str]) -> tuple[str, bool]:
    """Return the name of the file of a cluster, and True if no file is known to be its own yet.

    RocketMQ's file belongs to the first cluster that uses it.
    """
    for name, known in clusters.items():
        if nameservers & set(known):
            return name, False
    if FIRST not in clusters:
        return FIRST, True
    number = 2
    while f"offsets-{number}.json" in clusters:
        number += 1
    return f"offsets-{number}.json", True


class _OffsetsFile(Body, frozen=True, kw_only=True):
    offset_table: dict[MessageQueue, int] = {}


def encode_offsets(offsets: Mapping[Queue, int]) -> bytes:
    """Encode offsets as RocketMQ does: objects as keys, which is no JSON."""
    return _OffsetsFile(offset_table={queue.wire(): offsets[queue] for queue in sorted(offsets)}).encode()


def decode_offsets(text: bytes) -> dict[Queue, int]:
    table = _OffsetsFile.decode(text).offset_table
    return {Queue.of(queue): offset for queue, offset in table.items()}
