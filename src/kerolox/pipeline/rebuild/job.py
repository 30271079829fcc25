"""Resumable job: its tasks write files, and finished tasks are not repeated after an interruption.

The folder ``_work`` of the result contains the request, and a note for each finished task. The same command
continues the job; another command, or a changed source, is rejected. A lock keeps out a second process.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from kerolox.atomic_file import write_atomically
from kerolox.errors import KeroloxError, OptionError
from kerolox.store.disk.files import Files
from kerolox.store.disk.lock import StoreLock
from kerolox.store.offline.half_made import FINISHED, PLAN, WORK

_LOCK = "lock"

Made = TypeVar("Made")
# Callback of progress: current step, amount done, total amount (bytes or tasks).
OnStep = Callable[[str, int, int], None]


class OtherWork(KeroloxError):
    """The directory has the result, or the unfinished work, of another command."""


class Job:
    """Work folder of a command."""

    def __init__(self, to: str | os.PathLike[str], asked: dict[str, Any]) -> None:
        self.to = Path(os.path.abspath(to))
        self.work = self.to / WORK
        self._asked = msgspec.to_builtins(asked)
        self._lock = StoreLock(Files(), self.work)

    def check(self) -> None:
        """Raise an error if the directory contains anything but this job. Called before Spark starts."""
        parent = next(path for path in (self.to, *self.to.parents) if path.exists())
        if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
            raise OptionError("--to", str(self.to), f"a writable place; {parent} cannot be written to")
        if self._is_new():
            return
        try:
            began = msgspec.json.decode((self.work / PLAN).read_bytes())
        except (OSError, msgspec.DecodeError):
            raise OtherWork(
                f"{self.to} is not empty, and this command did not create its contents. Choose another --to."
            ) from None
        unlike = [name for name in {**self._asked, **began} if self._asked.get(name) != began.get(name)]
        if unlike:
            told = "; ".join(
                f"{name} was {_short(began.get(name))}, now {_short(self._asked.get(name))}"
                for name in unlike
            )
            raise OtherWork(
                f"{self.to} was started with other arguments: {told}. Repeat these, or choose another --to."
            )

    def _is_new(self) -> bool:
        """Return True if the directory is missing or empty, apart from files of a run killed at its start."""
        if not self.to.exists():
            return True
        if {path.name for path in self.to.iterdir()} - {WORK}:
            return False
        if not self.work.is_dir():
            return not self.work.exists()
        return all(path.name == _LOCK or path.name.startswith(f".{PLAN}.") for path in self.work.iterdir())

    @contextmanager
    def held(self) -> Iterator[None]:
        """Start or continue the job, with a lock against a second process."""
        self.check()
        self.work.mkdir(parents=True, exist_ok=True)
        self._lock.take()
        try:
            if not (self.work / PLAN).exists():
                write_atomically(self.work / PLAN, msgspec.json.encode(self._asked))
            yield
        finally:
            self._lock.release()

    def finished(self, kind: type[Made]) -> Made | None:
        """Return the result if the job is finished. Files left by a run killed at its end are removed."""
        done = self.note(FINISHED, kind)
        if done is not None and self._leftovers():
            with nullcontext() if self._lock.held else self.held():
                self._tidy()
        return done

    def finish(self, result: msgspec.Struct) -> None:
        """Write the result, and remove the intermediate files."""
        self.write_note(FINISHED, result)
        self._tidy()

    def _leftovers(self) -> list[Path]:
        return [path for path in self.work.iterdir() if path.name not in (PLAN, FINISHED, _LOCK)]

    def _tidy(self) -> None:
        for path in self._leftovers():
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def note(self, name: str, kind: type[Made]) -> Made | None:
        try:
            return msgspec.json.decode((self.work / name).read_bytes(), type=kind)
        except (OSError, msgspec.DecodeError):
            return None

    def write_note(self, name: str, value: Any) -> None:
        write_atomically(self.work / name, msgspec.json.encode(value))


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 80 else text[:77] + "..."
