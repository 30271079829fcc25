"""Kafka for the Spark benchmark: Spark's own connector, and a broker for it to talk to.

Both come from Maven Central and are kept in the user's cache. The broker runs as its own script would start
it, as one node that is controller and broker at once.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.peers.jars import MVN_TIMEOUT, PLUGIN, PeersUnavailable, cache_dir, locked
from tests.peers.java import find_java
from tests.rig.ports import free_ports

from bench import machine

BROKER_VERSION = "4.3.1"
# Maven Central has no connector for Spark 4.3.0; the one for 4.2.0 loads. The part of it that knows
# delegation tokens, which nothing here uses, was not published with it: the newest there is.
CONNECTOR_VERSION = "4.2.0"
TOKENS_VERSION = "4.1.0-preview1"
CLIENTS_VERSION = "3.9.2"
POOL_VERSION = "2.13.1"

CONNECTOR = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", CONNECTOR_VERSION),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", TOKENS_VERSION),
    ("org.apache.kafka", "kafka-clients", CLIENTS_VERSION),
    ("org.apache.commons", "commons-pool2", POOL_VERSION),
)
BROKER = (
    ("org.apache.kafka", "kafka_2.13", BROKER_VERSION),
    ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.4"),  # as in its distribution
)

# kafka-run-class.sh and kafka-server-start.sh, heap included.
BROKER_FLAGS = (
    "-Xms1g",
    "-Xmx1g",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
START_TIMEOUT_S = 120.0
CLUSTER = "AAAAAAAAAAAAAAAAAAAAAA"

Artifact = tuple[str, str, str]


# --- jars -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class KafkaJars:
    connector: Path
    broker: Path

    @property
    def connector_classpath(self) -> str:
        """What a Spark JVM needs beside the jars PySpark brings."""
        return _classpath(self.connector)

    @property
    def broker_classpath(self) -> str:
        return _classpath(self.broker)


def get_kafka_jars() -> KafkaJars:
    """The jars, downloaded on first use only. Raises PeersUnavailable."""
    return KafkaJars(
        _fetched(f"kafka-connector-{CONNECTOR_VERSION}", CONNECTOR, alone=True),
        _fetched(f"kafka-{BROKER_VERSION}", BROKER, alone=False),
    )


def _classpath(folder: Path) -> str:
    return os.pathsep.join(str(jar) for jar in sorted(folder.glob("*.jar")))


def _fetched(name: str, artifacts: tuple[Artifact, ...], *, alone: bool) -> Path:
    """A folder with the jars of ``artifacts``; ``alone`` means without what they depend on."""
    folder = cache_dir() / name
    if folder.is_dir():
        return folder
    mvn = shutil.which("mvn")
    if mvn is None:
        raise PeersUnavailable(
            f"the jars of {name} are not cached and there is no mvn on PATH: install maven"
        )
    with locked(cache_dir() / f"{name}.lock"):
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=cache_dir()) as work:
                (Path(work) / "pom.xml").write_text(_pom(artifacts, alone=alone), encoding="utf-8")
                _copy_dependencies(mvn, Path(work), name)
                (Path(work) / "lib").rename(folder)
    return folder


def _copy_dependencies(mvn: str, work: Path, name: str) -> None:
    command = [mvn, "-B", "-q", f"{PLUGIN}:copy-dependencies"]
    command += [f"-DoutputDirectory={work / 'lib'}", "-DincludeScope=runtime"]
    try:
        done = subprocess.run(command, cwd=work, capture_output=True, text=True, timeout=MVN_TIMEOUT)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PeersUnavailable(f"mvn could not fetch {name}: {error}") from error
    if done.returncode != 0:
        said = done.stdout + done.stderr
        lines = [line for line in said.splitlines() if "ERROR" in line] or [said]
        raise PeersUnavailable(f"mvn could not fetch {name}: {lines[0][:500]}")


def _pom(artifacts: tuple[Artifact, ...], *, alone: bool) -> str:
    none = "<exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion>" if alone else ""
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
        f"<version>{version}</version><exclusions>{none}</exclusions></dependency>\n"
        for group, artifact, version in artifacts
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0">\n'
        "<modelVersion>4.0.0</modelVersion>\n"
        "<groupId>kerolox</groupId><artifactId>bench</artifactId><version>1</version>\n"
        "<packaging>pom</packaging>\n"
        f"<dependencies>\n{dependencies}</dependencies>\n</project>\n"
    )


# --- the broker -----------------------------------------------------------------------------------


class KafkaBroker:
    """One node with a log of its own, from its start to its end."""

    def __init__(self, jars: KafkaJars, queues: int) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="kerolox-bench-kafka-"))
        port, controller = free_ports(2)
        self.address = f"127.0.0.1:{port}"
        config = self.home / "server.properties"
        settings = self._settings(port, controller, queues)
        config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        java = [str(find_java().path)]
        format_command = [*java, "-cp", jars.broker_classpath, "kafka.tools.StorageTool", "format"]
        subprocess.run(
            [*format_command, "-t", CLUSTER, "-c", str(config)], check=True, capture_output=True, timeout=120
        )
        command = [*java, *BROKER_FLAGS, "-cp", jars.broker_classpath, "kafka.Kafka", str(config)]
        with (self.home / "output.txt").open("wb") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=output, cwd=self.home)
        try:
            machine.connect_when_open(port, self.process, START_TIMEOUT_S).close()
            time.sleep(0.5)  # it listens a moment before it is the leader of anything
        except BaseException:
            self.close()
            raise

    def _settings(self, port: int, controller: int, queues: int) -> dict[str, object]:
        """What a single node needs; everything else as by default."""
        return {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": self.home / "logs",
            "num.partitions": queues,
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "share.coordinator.state.topic.replication.factor": 1,
            "share.coordinator.state.topic.min.isr": 1,
            # On a busy machine its own heartbeats come late; nobody else is there to take over.
            "broker.session.timeout.ms": 600_000,
        }

    @property
    def pid(self) -> int:
        return self.process.pid

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(20.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.home, ignore_errors=True)
