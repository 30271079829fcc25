"""Fetch Apache RocketMQ's released jars with ``mvn`` and keep them in a user cache.

The tests talk to the real thing, so the real thing is fetched by Maven coordinates rather than
kept in the repository.  One folder per version holds every jar; its existence is the mark that
the download was complete, because it only ever appears by a rename.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

VERSION_5X = "5.5.0"
VERSION_4X = "4.9.7"  # 4.9.8 was released without its name server and broker jars
CLIENT_OF_GRPC = "client-java-5.2.0"  # RocketMQ 5's own Java client, in one jar with all it needs
ECJ_VERSION = "3.33.0"  # the last line of the Eclipse compiler that itself runs on Java 11 and up
PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1"
MODULES = ("namesrv", "broker", "client", "tools")
MODULES_5X = (*MODULES, "example")  # no 4.9 release since 4.9.4 has the examples
MVN_TIMEOUT = 900.0


class PeersUnavailable(Exception):
    """The Java peers cannot run here; the message says what is missing."""


@dataclass(frozen=True)
class Jars:
    """One version of RocketMQ on disk."""

    version: str
    root: Path

    @property
    def is_4x(self) -> bool:
        return self.version.startswith("4.")

    @property
    def classpath(self) -> str:
        """Every RocketMQ jar and its dependencies, in a fixed order (class data sharing needs one)."""
        jars = sorted((self.root / "lib").glob("*.jar"))
        return os.pathsep.join(str(jar) for jar in jars)

    @property
    def compiler(self) -> Path:
        """The Eclipse compiler, so that a Java runtime without ``javac`` is enough."""
        return self.root / "ecj.jar"


def wanted_version(name: str | None = None) -> str:
    """Turn ``None``, ``"5x"``, ``"4x"`` or a full version into a full version."""
    name = name or os.environ.get("KEROLOX_PEERS_VERSION") or VERSION_5X
    return {"5x": VERSION_5X, "5.x": VERSION_5X, "4x": VERSION_4X, "4.x": VERSION_4X}.get(name, name)


def cache_dir() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "kerolox" / "peers"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on ``path``: several pytest workers may want the same thing at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def get_jars(version: str | None = None) -> Jars:
    """Return the jars of ``version``, downloading them on first use only."""
    version = wanted_version(version)
    root = cache_dir() / version
    if not root.is_dir():
        try:
            with locked(cache_dir() / f"{version}.lock"):
                if not root.is_dir():
                    _download(version, root)
        except OSError as error:
            raise PeersUnavailable(f"cannot keep jars under {cache_dir()}: {error}") from error
    return Jars(version, root)


def _download(version: str, root: Path) -> None:
    mvn = shutil.which("mvn")
    if mvn is None:
        raise PeersUnavailable(
            f"RocketMQ {version} jars are not cached and there is no mvn on PATH: install maven"
        )
    with tempfile.TemporaryDirectory(prefix=f".{version}-", dir=root.parent) as folder:
        work = Path(folder)
        (work / "pom.xml").write_text(_pom(version), encoding="utf-8")
        _run_mvn(mvn, work, version)
        (ecj,) = (work / "jars" / "lib").glob("ecj-*.jar")
        ecj.rename(work / "jars" / "ecj.jar")
        (work / "jars").rename(root)


def _run_mvn(mvn: str, work: Path, version: str) -> None:
    command = [
        mvn,
        "-B",
        "-q",
        f"{PLUGIN}:copy-dependencies",
        f"-DoutputDirectory={work / 'jars' / 'lib'}",
        "-DincludeScope=runtime",
    ]
    try:
        done = subprocess.run(
            command,
            cwd=work,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=MVN_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PeersUnavailable(f"mvn could not fetch RocketMQ {version}: {error}") from error
    if done.returncode != 0:
        lines = [line for line in done.stdout.splitlines() if "ERROR" in line] or [done.stdout]
        raise PeersUnavailable(f"mvn could not fetch RocketMQ {version}: {lines[0][:500]}")


def _pom(version: str) -> str:
    modules = MODULES if version.startswith("4.") else MODULES_5X
    if version == CLIENT_OF_GRPC:
        name, _, version = version.rpartition("-")
        modules = (name,)
    wanted = [("org.apache.rocketmq", f"rocketmq-{module}", version) for module in modules]
    wanted.append(("org.eclipse.jdt", "ecj", ECJ_VERSION))
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
        f"<version>{number}</version></dependency>\n"
        for group, artifact, number in wanted
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0">\n'
        "<modelVersion>4.0.0</modelVersion>\n"
        "<groupId>kerolox</groupId><artifactId>peers</artifactId><version>1</version>\n"
        "<packaging>pom</packaging>\n"
        f"<dependencies>\n{dependencies}</dependencies>\n</project>\n"
    )
