"""Epochs of a log: the leader that wrote each part of it. ``epochFileCheckpoint``, in RocketMQ's format.

Brokers under a controller have this file. It belongs to the log: a cut, or the deletion of old files, removes
epochs too, and a cut of both is one act (:mod:`kerolox.store.truncate`). An epoch without any byte of the log
is not kept. See ``protocol/epoch_file.py`` for its text.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec

from kerolox.errors import ProtocolError
from kerolox.protocol.epoch_file import decode_epochs, encode_epochs
from kerolox.protocol.ha_epochs import EPOCHS_MAX, Epoch
from kerolox.store.disk.files import Files, PathLike
from kerolox.store.errors import CorruptRecord, StoreError

log = logging.getLogger(__name__)

BACKUP = ".bak"
Epochs = tuple[Epoch, ...]


class EpochsFall(StoreError):
    """New epoch that is older than those of the log. Nothing was changed."""


P = ParamSpec("P")


def _one_at_a_time(
    change: Callable[Concatenate[EpochFile, P], None],
) -> Callable[Concatenate[EpochFile, P], None]:
    """Return a method that holds the lock of the file."""

    @wraps(change)
    def locked(file: EpochFile, /, *args: P.args, **kwargs: P.kwargs) -> None:
        with file._change:
            change(file, *args, **kwargs)

    return locked


class EpochFile:
    """List of epochs, in memory and on disk. Changes wait for the disk and for each other, because role
    changes and cuts of the log come from different threads; ``entries`` may be read by any thread."""

    def __init__(self, files: Files, path: PathLike) -> None:
        self.entries: Epochs = ()  # oldest first; epoch numbers and offsets increase
        self.path = os.fspath(path)
        self.is_loaded = False
        self._files = files
        self._change = threading.RLock()

    @_one_at_a_time
    def load(self) -> None:
        """Read the file once. Raise CorruptRecord if neither it nor RocketMQ's copy beside it can be read."""
        if self.is_loaded:
            return
        found: Epochs | None = None
        wrong: list[str] = []
        for path in (self.path, self.path + BACKUP):
            data = self._files.read_if_exists(path)
            if data is None:
                continue
            try:
                found = decode_epochs(data)
            except ProtocolError as error:
                wrong.append(f"{path}: {error}")
                continue
            if found:
                break  # for an empty list RocketMQ, which never writes one, reads the copy
        if found is None and wrong:
            raise CorruptRecord(
                f"cannot read the epochs of the log: {'; '.join(wrong)}. Nothing was changed. Restore the "
                "file from a backup, or move it away and restart: the ends of this log and the leader's "
                "are then compared byte by byte.",
                path=self.path,
            )
        if wrong:
            log.warning("epoch_file_damaged reason=%r next='no action needed: its copy is used'", wrong[0])
        self.entries = found or ()
        self.is_loaded = True

    # --- changes: the file first -----------------------------------------------------------------------

    @_one_at_a_time
    def begin(self, number: int, start: int, log_min: int) -> None:
        """Begin an epoch at ``start``, led by this broker. Does nothing if the last epoch has this number."""
        kept = _before(self.entries, start)
        if kept and kept[-1].number == number:
            return
        if kept and kept[-1].number > number:
            raise EpochsFall(
                f"cannot begin epoch {number} at {start}: the log before it was written in epoch "
                f"{kept[-1].number}, from {kept[-1].start} on. The controller's state was lost, or is an "
                f"older copy. Restore it, or make it continue after epoch {kept[-1].number}.",
                path=self.path,
                offset=start,
            )
        self._save(self._bounded((*kept, Epoch(number, start)), log_min))

    @_one_at_a_time
    def heard(self, epoch: Epoch, log_min: int) -> None:
        """Record an epoch of the leader that this log continues in. Raise EpochsFall if a later epoch has
        begun here meanwhile: this broker was elected while it copied."""
        if epoch in self.entries:
            return
        if self.entries and self.entries[-1].number > epoch.number:
            last = self.entries[-1]
            raise EpochsFall(
                f"epoch {epoch.number} from {epoch.start} has ended: epoch {last.number} began at "
                f"{last.start}",
                path=self.path,
                offset=epoch.start,
            )
        self.begin(*epoch, log_min)

    @_one_at_a_time
    def take(self, epochs: Epochs) -> None:
        """Replace the epochs by the leader's, because the log was found to be the leader's."""
        if epochs != self.entries:
            self._save(epochs)

    @_one_at_a_time
    def cut(self, offset: int) -> None:
        """Remove the epochs that begin at or after a cut of the log."""
        self._keep(_before(self.entries, offset))

    @_one_at_a_time
    def fit(self, end: int) -> None:
        """Remove the epochs that begin after the recovered end of the log. One may begin exactly there."""
        self._keep(tuple(epoch for epoch in self.entries if epoch.start <= end))

    @_one_at_a_time
    def drop_before(self, log_min: int) -> None:
        """Remove the epochs before the new beginning of the log. One that ends exactly there stays, because a
        follower may be at that offset."""
        self._keep(_from(self.entries, log_min))

    def _bounded(self, epochs: Epochs, log_min: int) -> Epochs:
        if len(epochs) <= EPOCHS_MAX:
            return epochs
        epochs = _from(epochs, log_min)
        if len(epochs) > EPOCHS_MAX:
            log.warning(
                "epochs_forgotten count=%d before=%d reason='a handshake with a follower has room for %d' "
                "next='if a follower shares only older epochs with this log, empty its store: it copies "
                "anew'",
                len(epochs) - EPOCHS_MAX, epochs[-EPOCHS_MAX].start, EPOCHS_MAX,
            )  # fmt: skip
        return epochs[-EPOCHS_MAX:]

    def _keep(self, epochs: Epochs) -> None:
        if len(epochs) != len(self.entries):
            self._save(epochs)

    def _save(self, epochs: Epochs) -> None:
        self._files.make_dirs(os.path.dirname(self.path))
        # RocketMQ's copy is older, and would be read in place of an empty list.
        if self._files.remove(self.path + BACKUP):
            self._files.sync_dir(os.path.dirname(self.path))
        self._files.write_atomic(self.path, encode_epochs(epochs))
        self.entries = epochs


def _before(epochs: Epochs, offset: int) -> Epochs:
    return tuple(epoch for epoch in epochs if epoch.start < offset)


def _from(epochs: Epochs, log_min: int) -> Epochs:
    """Return the epochs without those that ended before this offset."""
    ends = [epoch.start for epoch in epochs[1:]]
    first = sum(end < log_min for end in ends)
    return epochs[first:]
