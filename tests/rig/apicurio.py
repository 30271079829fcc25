"""Apicurio Registry as a process, for its API that speaks Confluent's protocol. It keeps all in memory.

It comes from Maven Central into the user's cache, once. 3.0.9 is the newest release there that runs with
Java 17; 3.3 wants 21.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.peers.jars import PeersUnavailable, cache_dir, locked
from tests.peers.java import find_java
from tests.rig.ports import free_ports

VERSION = "3.0.9"
NAME = "apicurio-registry-app"
ADDRESS = f"https://repo1.maven.org/maven2/io/apicurio/{NAME}/{VERSION}/{NAME}-{VERSION}-all.tar.gz"
SHA256 = "2b28181501a20cbf6efcd77f9b7153908fc01f3d3a7c32024c0bd9e1b04c8a43"
START_S = 240.0


def get_program() -> Path:
    """The folder with the program, fetched on first use."""
    root = cache_dir() / f"apicurio-{VERSION}"
    if not root.is_dir():
        with locked(cache_dir() / f"apicurio-{VERSION}.lock"):
            if not root.is_dir():
                _download(root)
    return root


def _download(root: Path) -> None:
    """Without mvn, which asks for the parent of its pom: that was never released."""
    with tempfile.TemporaryDirectory(prefix=".apicurio-", dir=root.parent) as folder:
        packed, program = Path(folder, "all.tar.gz"), Path(folder, "program")
        try:
            with urllib.request.urlopen(ADDRESS, timeout=60) as answer, packed.open("wb") as file:
                shutil.copyfileobj(answer, file)
        except OSError as error:
            raise PeersUnavailable(f"Apicurio is not cached, and {ADDRESS} cannot be read: {error}") from None
        with packed.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != SHA256:
            raise PeersUnavailable(f"what is at {ADDRESS} has SHA-256 {found}, not {SHA256}")
        with tarfile.open(packed) as files:
            files.extractall(program, filter="data")
        program.rename(root)


@contextmanager
def apicurio(home: Path) -> Iterator[str]:
    """Runs a registry; the address of its API. ``home`` is where its log goes."""
    (program,) = get_program().glob("*-runner.jar")
    (port,) = free_ports(1)
    command = [os.fspath(find_java().path), "-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    settings = {"QUARKUS_HTTP_HOST": "127.0.0.1", "QUARKUS_HTTP_PORT": str(port)}
    with open(home / "registry.log", "wb") as log:
        process = subprocess.Popen(
            [*command, "-jar", os.fspath(program)], cwd=home, env={**os.environ, **settings},
            stdout=log, stderr=log, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    try:
        address = f"http://127.0.0.1:{port}/apis/ccompat/v7"
        _wait(process, address, home / "registry.log")
        yield address
    finally:
        process.kill()
        process.wait()


def _wait(process: subprocess.Popen[bytes], address: str, log: Path) -> None:
    deadline_s = time.monotonic() + START_S
    while True:
        try:
            urllib.request.urlopen(f"{address}/subjects", timeout=30).close()
            return
        except OSError as error:
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise AssertionError(f"no registry: {error}\n{log.read_text()[-2000:]}") from None
            time.sleep(0.2)
