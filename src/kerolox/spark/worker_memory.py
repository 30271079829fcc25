"""What Spark's Python workers keep, and how often they look at it.

A worker that is used again runs a full garbage collection after every task. With everything loaded that a
task of ours needs (Arrow, numpy, PySpark, the client) it goes through over 100,000 objects, none of which
ever goes: 20 to 30 ms of CPU, ten times what a task of a few rows takes otherwise. So once modules were
loaded, what is there is put aside for good, and collections look only at what came since.
"""

from __future__ import annotations

import gc
import sys

# The main modules of processes that run task after task.
DAEMONS = ("pyspark.daemon", "kerolox.spark.worker_daemon")

_modules = 0  # that were loaded when it was put aside last


def is_used_again() -> bool:
    """Whether this process was forked by Spark's daemon. Others end with what they were started for."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name in DAEMONS


def put_aside() -> None:
    """At the end of a task: leave what stays out of collections, if there is more of it than last time."""
    global _modules
    if len(sys.modules) == _modules or not is_used_again():
        return
    _modules = len(sys.modules)
    gc.collect()  # or garbage would stay as well
    gc.freeze()
