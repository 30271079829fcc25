"""Garbage collection in Spark's Python workers.

A reused worker runs a full garbage collection after every task. With the modules of a kerolox task loaded
(Arrow, numpy, PySpark, the client) it visits over 100,000 permanent objects: 20 to 30 ms of CPU, ten times
the rest of a task of a few rows. So after modules are loaded, ``gc.freeze()`` excludes all objects, and
later collections visit only newer ones.
"""

from __future__ import annotations

import gc
import sys

# Main modules of reused worker processes.
DAEMONS = ("pyspark.daemon", "kerolox.spark.worker_daemon")

_modules = 0  # number of modules loaded at the last freeze


def is_used_again() -> bool:
    """Return True if Spark's daemon forked this process. Other processes run only one task."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name in DAEMONS


def put_aside() -> None:
    """Exclude all objects from collections at the end of a task, if more modules are loaded than before."""
    global _modules
    if len(sys.modules) == _modules or not is_used_again():
        return
    _modules = len(sys.modules)
    gc.collect()  # or garbage would stay as well
    gc.freeze()
