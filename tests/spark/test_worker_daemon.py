from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kerolox.spark.worker_daemon import GONE, quietly

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("error", [BrokenPipeError(32, "Broken pipe"), ConnectionResetError(104, "reset")])
def test_a_worker_whose_jvm_is_gone_just_ends(error: OSError) -> None:
    def work(socket: object, authenticated: bool) -> int:
        raise error

    assert quietly(work)(None, True) == GONE


def test_other_errors_are_told() -> None:
    def work(socket: object, authenticated: bool) -> int:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        quietly(work)(None, True)
    assert quietly(lambda socket, authenticated: 0)(None, True) == 0


def test_sessions_on_this_machine_start_it(spark: SparkSession) -> None:
    def words(_: int) -> str:
        from pathlib import Path

        return Path("/proc/self/cmdline").read_text().replace("\0", " ")

    (line,) = spark.sparkContext.parallelize([1], 1).map(words).collect()
    assert "kerolox.spark.worker_daemon pyspark.worker" in line
