"""The epochs of a log: which leader wrote which part of it. ``epochFileCheckpoint``, as RocketMQ keeps it.

Brokers under a controller have it. It belongs to the log: what the log loses, by a cut or by its age, it
loses too, and a cut of both is one act (:mod:`kerolox.store.truncate`). An epoch without a byte leaves no
trace. See ``protocol/epoch_file.py`` for its text.
"""

from __future__ import annotations

import logging
import os

from kerolox.errors import ProtocolError
from kerolox.protocol.epoch_file import decode_epochs, encode_epochs
from kerolox.protocol.ha_epochs import EPOCHS_MAX, Epoch
from kerolox.store.disk.files import Files, PathLike
from kerolox.store.errors import CorruptRecord, StoreError

log = logging.getLogger(__name__)

BACKUP = ".bak"
Epochs = tuple[Epoch, ...]


class EpochsFall(StoreError):
    """An epoch that is to begin is older than what the log holds. Nothing was changed."""


class EpochFile:
    """The list, in memory and on disk. Changes wait for the disk, and one thread makes them (the store's
    keeper); ``entries`` may be read anywhere."""

    def __init__(self, files: Files, path: PathLike) -> None:
        self.entries: Epochs = ()  # oldest first; both numbers rise
        self.path = os.fspath(path)
        self.is_loaded = False
        self._files = files

    def load(self) -> None:
        """Read it, once. Raises CorruptRecord when neither it nor RocketMQ's copy beside it reads."""
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
                break  # of an empty list RocketMQ, which never writes one, reads the copy
        if found is None and wrong:
            raise CorruptRecord(
                f"the epochs of the log do not read: {'; '.join(wrong)}. Nothing was changed. Restore the "
                "file from a copy, or move it away and start again: the log is then compared with the "
                "leader's byte by byte where both end.",
                path=self.path,
            )
        if wrong:
            log.warning("epoch_file_damaged reason=%r next='its copy is used'", wrong[0])
        self.entries = found or ()
        self.is_loaded = True

    # --- changes: the file first -----------------------------------------------------------------------

    def begin(self, number: int, start: int, log_min: int) -> None:
        """This broker leads, and the log goes on at ``start``. To go on in the last epoch changes nothing."""
        kept = _before(self.entries, start)
        if kept and kept[-1].number == number:
            return
        if kept and kept[-1].number > number:
            raise EpochsFall(
                f"epoch {number} cannot begin at {start}: the log before it was written in epoch "
                f"{kept[-1].number}, from {kept[-1].start} on. The controller knows less than this broker: "
                "its state was lost, or is an older copy. Restore it, or let it count on from there.",
                path=self.path,
                offset=start,
            )
        self._save(self._bounded((*kept, Epoch(number, start)), log_min))

    def heard(self, epoch: Epoch, log_min: int) -> None:
        """The leader's log has this epoch, and this log goes on in it. Raises EpochsFall when a later one has
        begun here meanwhile: this broker was elected while it copied."""
        if epoch in self.entries:
            return
        if self.entries and self.entries[-1].number > epoch.number:
            last = self.entries[-1]
            raise EpochsFall(
                f"epoch {epoch.number} from {epoch.start} is over: epoch {last.number} has begun at "
                f"{last.start}",
                path=self.path,
                offset=epoch.start,
            )
        self.begin(*epoch, log_min)

    def take(self, epochs: Epochs) -> None:
        """These are the epochs of the log: it was found to be the leader's."""
        if epochs != self.entries:
            self._save(epochs)

    def cut(self, offset: int) -> None:
        """The log ends here now."""
        self._keep(_before(self.entries, offset))

    def fit(self, end: int) -> None:
        """The log was found to end here. An epoch may have begun there."""
        self._keep(tuple(epoch for epoch in self.entries if epoch.start <= end))

    def drop_before(self, log_min: int) -> None:
        """The log begins here now. The epoch that ended here stays: a follower may be as far."""
        self._keep(_from(self.entries, log_min))

    def _bounded(self, epochs: Epochs, log_min: int) -> Epochs:
        if len(epochs) <= EPOCHS_MAX:
            return epochs
        epochs = _from(epochs, log_min)
        if len(epochs) > EPOCHS_MAX:
            log.warning(
                "epochs_forgotten count=%d before=%d reason='a handshake with a follower has room for %d' "
                "next='a follower that shares only older ones with this log has to copy anew'",
                len(epochs) - EPOCHS_MAX, epochs[-EPOCHS_MAX].start, EPOCHS_MAX,
            )  # fmt: skip
        return epochs[-EPOCHS_MAX:]

    def _keep(self, epochs: Epochs) -> None:
        if len(epochs) != len(self.entries):
            self._save(epochs)

    def _save(self, epochs: Epochs) -> None:
        self._files.make_dirs(os.path.dirname(self.path))
        # RocketMQ's copy is older, and would be read for an empty list.
        if self._files.remove(self.path + BACKUP):
            self._files.sync_dir(os.path.dirname(self.path))
        self._files.write_atomic(self.path, encode_epochs(epochs))
        self.entries = epochs


def _before(epochs: Epochs, offset: int) -> Epochs:
    return tuple(epoch for epoch in epochs if epoch.start < offset)


def _from(epochs: Epochs, log_min: int) -> Epochs:
    """Without those that ended before this place."""
    ends = [epoch.start for epoch in epochs[1:]]
    first = sum(end < log_min for end in ends)
    return epochs[first:]
