"""What the process loads that Spark starts to plan a write, for a job or a micro-batch."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
import pyspark.sql.worker.write_into_data_source
import kerolox.spark.datasource, kerolox.spark.sink.sink
print(*sorted(sys.modules))
"""


def test_whoever_plans_a_write_does_without_pandas() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=True
    )
    loaded = done.stdout.split()
    assert "kerolox.spark.sink.sink" in loaded
    assert "pandas" not in loaded
