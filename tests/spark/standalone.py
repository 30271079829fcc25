"""A Spark cluster of its own processes on this machine: a master and workers, from the package of PyPI."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

from kerolox.spark.java import find_java, java_command

HOME = Path(pyspark.__file__).parent
QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
START_S = 120.0
# What executors have, besides Spark itself.
LIBRARIES = ("numpy", "pyarrow", "pandas", "dateutil", "pytz", "six.py", "tzdata")


class Daemon:
    """A master or a worker."""

    def __init__(self, main_class: str, *words: str, sign: str, environment: dict[str, str]) -> None:
        settings = {"spark.driver.memory": "256m", "spark.driver.extraJavaOptions": " ".join(QUICK)}
        self.process = subprocess.Popen(
            [*java_command(find_java(), HOME, settings), main_class, *words],
            env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.lines: list[str] = []
        self._sign = re.compile(sign)
        self._found: re.Match[str] | None = None
        self._ready = threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if self._found is None and (found := self._sign.search(line)):
                self._found = found
                self._ready.set()
        self._ready.set()

    def ready(self) -> re.Match[str]:
        self._ready.wait(START_S)
        assert self._found is not None, "".join(self.lines)
        return self._found

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@contextmanager
def spark_cluster(folder: Path, workers: int = 2) -> Iterator[str]:
    """Its address, such as spark://127.0.0.1:40123. Each worker has one core and 700 MB."""
    environment = {
        **os.environ,
        "SPARK_HOME": str(HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SCALA_VERSION": "2.13",
        "SPARK_NO_DAEMONIZE": "1",
        "JAVA_HOME": str(Path(find_java().path).resolve().parents[1]),
    }
    with ExitStack() as stack:
        master = Daemon(
            "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "0",
            "--webui-port", "0", sign=r"Starting Spark master at (spark://\S+)", environment=environment,
        )  # fmt: skip
        stack.callback(master.stop)
        address = master.ready()[1]
        started = [
            Daemon(
                "org.apache.spark.deploy.worker.Worker", address, "--host", "127.0.0.1", "--port", "0",
                "--webui-port", "0", "--cores", "1", "--memory", "700m",
                "--work-dir", str(folder / f"w{number}"),
                sign="Successfully registered with master", environment=environment,
            )
            for number in range(workers)
        ]  # fmt: skip
        for worker in started:
            stack.callback(worker.stop)
        for worker in started:
            worker.ready()
        yield address


def driver_settings(folder: Path) -> Path:
    """A folder for SPARK_CONF_DIR: executors that fit to the workers, and start quickly."""
    place = folder / "conf"
    place.mkdir()
    (place / "spark-defaults.conf").write_text(
        "spark.driver.host 127.0.0.1\n"
        "spark.driver.bindAddress 127.0.0.1\n"
        "spark.executor.memory 512m\n"
        f"spark.executor.extraJavaOptions {' '.join(QUICK)}\n"
    )
    return place


def bare_python(folder: Path, libraries: Sequence[str] = LIBRARIES) -> Path:
    """A Python that has a few libraries and nothing else: no kerolox, no msgspec."""
    place = folder / "libraries"
    place.mkdir()
    import numpy

    site = Path(numpy.__file__).parents[1]
    for name in libraries:
        for found in (name, f"{name}.libs"):
            if (site / found).exists():
                (place / found).symlink_to(site / found)
    script = folder / "python"
    executable = getattr(sys, "_base_executable", sys.executable)
    script.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{place}" exec "{executable}" -S "$@"\n')
    script.chmod(0o755)
    return script
