"""The tasks of an archive on Spark, and a check that executors can reach the archive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kerolox.errors import KeroloxError, OptionError
from kerolox.pipeline import runner
from kerolox.pipeline.archive.files import WriteTask, carry_out
from kerolox.pipeline.lake.staging import OWN_FOLDER
from kerolox.pipeline.lake.storage import Storage
from kerolox.pipeline.lake.upkeep import JoinTask, TaskResult
from kerolox.spark.shipping import check_driver

if TYPE_CHECKING:
    from pyspark import SparkContext


class ArchiveFailed(KeroloxError):
    """A failed round. Earlier commits stay."""

    def __init__(self, why: str, *, retriable: bool = False) -> None:
        self.retriable = retriable
        super().__init__(why)


class OnSpark:
    """Runner of tasks on Spark. The context may be set later."""

    def __init__(self, context: SparkContext | None = None) -> None:
        self.context = context

    def __call__(self, works: Sequence[WriteTask | JoinTask]) -> Sequence[TaskResult]:
        assert self.context is not None
        try:
            return runner.OnSpark(self.context).run(carry_out, works)
        except runner.TaskFailed as error:
            raise ArchiveFailed(str(error)) from error


def check_shared(context: SparkContext, storage: Storage) -> None:
    """Check that executors have the driver for the address, and see the same files there as this process."""
    if storage.driver is not None:
        check_driver(context, storage.address, *storage.driver)

    def sees(_: int) -> str:
        try:
            found = storage.files(OWN_FOLDER)
        except (KeroloxError, OSError) as error:
            return str(error)
        # A path may be a different folder on another machine; an address is the same everywhere.
        return "it does not exist there" if storage.is_local and not found else ""

    count = max(2, context.defaultParallelism)
    said = context.parallelize(range(count), count).map(sees).collect()
    if why := next((each for each in said if each), ""):
        raise OptionError(
            "to", storage.address, f"an address that every executor can reach, such as a mount ({why})"
        )
