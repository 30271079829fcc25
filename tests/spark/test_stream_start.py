"""What the process loads that Spark starts for the offsets of a streaming query, each time one starts."""

from __future__ import annotations

import subprocess
import sys

HEAVY = (
    "asyncio",
    "ssl",
    "pandas",
    "pyarrow.compute",
    "kerolox.spark.records",
    "kerolox.protocol.filters.sql",
)
PROGRAM = """
import sys
import pyspark.sql.streaming.python_streaming_source_runner
before = set(sys.modules)
import kerolox.spark.datasource, kerolox.spark.source.stream
print(*sorted(set(sys.modules) - before))
"""


def test_it_loads_nothing_that_only_readers_need() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=True
    )
    loaded = done.stdout.split()
    assert "kerolox.spark.source.stream" in loaded
    assert not set(HEAVY) & set(loaded)
