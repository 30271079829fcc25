"""Apache Iceberg's own REST catalog, as a process: the server its project tests clients with.

It is a class of ``iceberg-open-api``'s test fixtures over a JDBC catalog in SQLite. The jars come from Maven
Central into the user's cache, once.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.peers.jars import MVN_TIMEOUT, PLUGIN, PeersUnavailable, cache_dir, locked
from tests.rig.ports import free_ports

VERSION = "1.11.0"
JETTY = "12.1.3"
HADOOP = "3.4.1"
AWS = "2.34.0"
# What the fixtures need beside what their pom names, which is nothing.
WANTED = (
    ("org.apache.iceberg", "iceberg-open-api", VERSION, "test-fixtures"),
    ("org.apache.iceberg", "iceberg-core", VERSION, ""),
    ("org.apache.iceberg", "iceberg-core", VERSION, "tests"),
    ("org.apache.iceberg", "iceberg-aws", VERSION, ""),
    ("org.eclipse.jetty.ee10", "jetty-ee10-servlet", JETTY, ""),
    ("org.eclipse.jetty.compression", "jetty-compression-server", JETTY, ""),
    ("org.eclipse.jetty.compression", "jetty-compression-gzip", JETTY, ""),
    ("org.apache.hadoop", "hadoop-client-api", HADOOP, ""),
    ("org.apache.hadoop", "hadoop-client-runtime", HADOOP, ""),
    ("org.xerial", "sqlite-jdbc", "3.50.3.0", ""),
    ("software.amazon.awssdk", "s3", AWS, ""),
    ("software.amazon.awssdk", "sts", AWS, ""),
    ("software.amazon.awssdk", "kms", AWS, ""),
    ("software.amazon.awssdk", "url-connection-client", AWS, ""),
    ("org.slf4j", "slf4j-nop", "2.0.17", ""),
)
START_S = 60.0


def get_jars() -> Path:
    """The folder with all jars, fetched on first use."""
    root = cache_dir() / f"iceberg-rest-{VERSION}"
    if not root.is_dir():
        with locked(cache_dir() / f"iceberg-rest-{VERSION}.lock"):
            if not root.is_dir():
                _download(root)
    return root


def _download(root: Path) -> None:
    mvn = shutil.which("mvn")
    if mvn is None:
        raise PeersUnavailable(
            "the jars of Iceberg's REST catalog are not cached, and there is no mvn on PATH"
        )
    with tempfile.TemporaryDirectory(prefix=".iceberg-", dir=root.parent) as folder:
        work = Path(folder)
        (work / "pom.xml").write_text(_pom(), encoding="utf-8")
        command = [mvn, "-B", "-q", f"{PLUGIN}:copy-dependencies", "-DincludeScope=runtime"]
        done = subprocess.run(
            [*command, f"-DoutputDirectory={work / 'jars'}"],
            cwd=work, capture_output=True, text=True, timeout=MVN_TIMEOUT, check=False,
        )  # fmt: skip
        if done.returncode:
            raise PeersUnavailable(f"mvn could not fetch Iceberg {VERSION}: {done.stdout[-500:]}")
        (work / "jars").rename(root)


def _pom() -> str:
    wanted = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>"
        + (f"<classifier>{classifier}</classifier>" if classifier else "")
        + "</dependency>\n"
        for group, artifact, version, classifier in WANTED
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0">\n<modelVersion>4.0.0</modelVersion>\n'
        "<groupId>kerolox</groupId><artifactId>iceberg-rest</artifactId><version>1</version>\n"
        f"<packaging>pom</packaging>\n<dependencies>\n{wanted}</dependencies>\n</project>\n"
    )


@contextmanager
def rest_catalog(home: Path, warehouse: str = "", settings: Mapping[str, str] | None = None) -> Iterator[str]:
    """Runs the server; its address. ``settings`` are a catalog's: ``{"s3.endpoint": URL}``."""
    java = shutil.which("java")
    if java is None:
        raise PeersUnavailable("there is no java on PATH")
    jars = get_jars()
    home.mkdir(parents=True, exist_ok=True)
    (port,) = free_ports(1)
    told = {
        "uri": f"jdbc:sqlite:{home / 'catalog.db'}",
        "warehouse": warehouse or (home / "warehouse").as_uri(),
        "rest.port": str(port),
        **(settings or {}),
    }
    # The server's way to name settings: CATALOG_S3_PATH__STYLE__ACCESS is s3.path-style-access.
    named = {
        "CATALOG_" + name.upper().replace("-", "__").replace(".", "_"): value for name, value in told.items()
    }
    command = [java, "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", f"{jars}/*"]
    with open(home / "server.log", "wb") as log:
        process = subprocess.Popen(
            [*command, "org.apache.iceberg.rest.RESTCatalogServer"],
            env={**os.environ, **named}, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    try:
        address = f"http://127.0.0.1:{port}"
        _wait(process, address, home / "server.log")
        yield address
    finally:
        process.kill()
        process.wait()


def _wait(process: subprocess.Popen[bytes], address: str, log: Path) -> None:
    deadline_s = time.monotonic() + START_S
    while True:
        try:
            urllib.request.urlopen(f"{address}/v1/config", timeout=5).close()
            return
        except OSError as error:
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise AssertionError(f"no REST catalog: {error}\n{log.read_text()[-2000:]}") from None
            time.sleep(0.05)
