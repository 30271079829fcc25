"""The tasks of an archive on a runner, and a check that they can reach the archive."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from kerolox.errors import KeroloxError, OptionError
from kerolox.pipeline.archive.files import WriteTask, carry_out
from kerolox.pipeline.lake.staging import OWN_FOLDER
from kerolox.pipeline.lake.storage import Storage
from kerolox.pipeline.lake.upkeep import JoinTask, TaskResult
from kerolox.pipeline.runner import Runner, TaskFailed


class ArchiveFailed(KeroloxError):
    """A failed round. Earlier commits stay."""

    def __init__(self, why: str, *, retriable: bool = False) -> None:
        self.retriable = retriable
        super().__init__(why)


class ArchiveTasks:
    """Tasks of an archive on a runner, which may be set later."""

    def __init__(self, runner: Runner | None = None) -> None:
        self.runner = runner

    def __call__(self, works: Sequence[WriteTask | JoinTask]) -> Sequence[TaskResult]:
        assert self.runner is not None
        try:
            return self.runner.run(carry_out, works)
        except TaskFailed as error:
            raise ArchiveFailed(str(error)) from error


def check_shared(runner: Runner, storage: Storage) -> None:
    """Check that tasks have the driver for the address, and see the same files there as this process."""
    if storage.driver is not None:
        runner.check_driver(storage.address, *storage.driver)
    said = runner.run(partial(_sees, storage), range(max(2, runner.cores)))
    if why := next((each for each in said if each), ""):
        raise OptionError(
            "to", storage.address, f"an address that every executor can reach, such as a mount ({why})"
        )


def _sees(storage: Storage, _: int) -> str:
    """Return the reason why this process does not see the files of the archive."""
    try:
        found = storage.files(OWN_FOLDER)
    except (KeroloxError, OSError) as error:
        return str(error)
    # A path may be a different folder on another machine; an address is the same everywhere.
    return "it does not exist there" if storage.is_local and not found else ""
