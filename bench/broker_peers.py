"""Both brokers as processes, and Apache's own benchmark clients as the load on them."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from tests.peers.jars import Jars
from tests.peers.java import OPEN_PACKAGES, find_java
from tests.peers.processes import log_settings, write_home
from tests.peers.wire import GET_BROKER_CLUSTER_INFO, UPDATE_BROKER_CONFIG, Answer, request
from tests.rig.ports import free_ports

from bench import apache, machine
from kerolox.net.signing import Credentials
from kerolox.protocol.bodies.stats import ConsumeStats, TopicStats
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.signature import sign

OURS, APACHE = "kerolox", "Apache"
QUEUES = 8
ASYNC_IN_FLIGHT = 1_000_000
START_TIMEOUT_S = 90.0
STORED = (ResponseCode.SUCCESS, ResponseCode.SLAVE_NOT_AVAILABLE, ResponseCode.FLUSH_SLAVE_TIMEOUT)

# runbroker.sh, but for the heap (8 GiB there, touched at the start) and the direct memory.
BROKER_FLAGS = (
    "-server",
    "-Xms2g",
    "-Xmx2g",
    "-XX:MaxDirectMemorySize=4g",
    "-XX:+UseG1GC",
    "-XX:G1HeapRegionSize=16m",
    "-XX:G1ReservePercent=25",
    "-XX:InitiatingHeapOccupancyPercent=30",
    "-XX:SoftRefLRUPolicyMSPerMB=0",
    "-XX:-OmitStackTraceInFastThrow",
    "-XX:-UseLargePages",
)
CLIENT_FLAGS = ("-server", "-Xms1g", "-Xmx1g", "-Xmn256m")  # runclass.sh's
PACKAGE = "org.apache.rocketmq.example.benchmark"


def java_command(
    jars: Jars, home: Path, flags: tuple[str, ...], main: str, arguments: list[str]
) -> list[str]:
    write_home(home)
    properties = {
        "user.home": str(home),
        "java.io.tmpdir": str(home),
        "java.net.preferIPv4Stack": "true",
        "peers.log.level": "OFF" if flags is CLIENT_FLAGS else "WARN",  # brokers are measured, not logs
        "tls.server.mode": "disabled",  # else it makes certificates at its start
        # The asynchronous producer sends faster than its own client takes answers. Once so many requests are
        # in flight (65,535 if left alone) the client waits for a free place in the very thread that reads
        # the answers, so that nothing moves until all of them have timed out, at either broker. Without that
        # bound its heap fills instead, but only after ten seconds or so.
        "com.rocketmq.remoting.clientAsyncSemaphoreValue": str(ASYNC_IN_FLIGHT),
        **log_settings(home),
    }
    return [
        str(find_java().path),
        *flags,
        *(f"--add-opens={package}=ALL-UNNAMED" for package in OPEN_PACKAGES),
        *(f"-D{name}={value}" for name, value in properties.items()),
        "-cp",
        jars.classpath,
        main,
        *arguments,
    ]


def stop(process: subprocess.Popen[bytes], timeout_s: float = 20.0) -> None:
    process.terminate()
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def set_cores(pid: int, cores: set[int]) -> None:
    """Every thread of a process; threads it starts later inherit that."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        try:
            os.sched_setaffinity(int(thread), cores)
        except ProcessLookupError:
            continue


def anonymous_mib(pid: int) -> float:
    """Memory that is the process's own: without the pages of mapped files, which are the page cache's."""
    text = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"^RssAnon:\s*(\d+) kB", text, re.MULTILINE)
    return int(found.group(1)) / 1024 if found else 0.0


class NameServer:
    """Ours, for either broker: it takes no part in what is measured."""

    def __init__(self, home: Path) -> None:
        home.mkdir(parents=True)
        self.port = free_ports(1)[0]
        self.address = f"127.0.0.1:{self.port}"
        config = home / "namesrv.conf"
        config.write_text(f"listenPort={self.port}\nkvConfigPath={home / 'kvConfig.json'}\n")
        with (home / "output.txt").open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "kerolox", "nameserver", "-c", str(config)],
                stdout=output,
                stderr=output,
                cwd=home,
            )
        machine.connect_when_open(self.port, self.process).close()

    def close(self) -> None:
        stop(self.process)


class BenchBroker:
    """One broker with a store of its own, from its start to its end. A name server is its own unless one is
    given, and a follower needs its leader's. With credentials all that is asked is signed."""

    def __init__(
        self,
        kind: str,
        jars: Jars | None,
        properties: Mapping[str, object],
        *,
        nameserver: NameServer | None = None,
        profile: Path | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self.kind = kind
        self._credentials = credentials
        self.home = Path(tempfile.mkdtemp(prefix=f"kerolox-bench-{kind.lower()}-"))
        self.nameserver = nameserver or NameServer(self.home / "nameserver")
        self._follows = properties.get("brokerRole") == "SLAVE"
        self._own_nameserver = nameserver is None
        self.port = free_ports(1, offsets=(0, -2, 1))[0]
        self.address = f"127.0.0.1:{self.port}"
        self._clients = itertools.count()
        config = self.home / "broker.conf"
        values: dict[str, object] = {
            "brokerIP1": "127.0.0.1",
            "brokerIP2": "127.0.0.1",
            "brokerName": "broker-a",
            "listenPort": self.port,
            "haListenPort": self.port + 1,
            "namesrvAddr": self.nameserver.address,
            "storePathRootDir": self.home / "store",
            "storePathCommitLog": self.home / "store" / "commitlog",
            "diskMaxUsedSpaceRatio": 95,
            **properties,
        }
        config.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
        environment = {name: value for name, value in os.environ.items() if name != "NAMESRV_ADDR"}
        if kind == OURS:
            under = [] if profile is None else ["-m", "cProfile", "-o", str(profile)]
            self._command = [sys.executable, *under, "-m", "kerolox", "broker", "-c", str(config)]
            self._command += ["--log-level", "warning", "--parent", str(os.getpid())]
        else:
            assert jars is not None
            main = "org.apache.rocketmq.broker.BrokerStartup"
            self._command = java_command(jars, self.home, BROKER_FLAGS, main, ["-c", str(config)])
            environment = apache.environment(self.home)
        self._environment = environment
        self.start()

    def start(self) -> None:
        """Start it, again after :meth:`stop`, and wait until it can be used."""
        began_s = time.monotonic()
        self.launch()
        try:
            if not self._follows:
                self._wait_stored()
            self.start_s = time.monotonic() - began_s
            self.start_cpu_s = machine.cpu_s(self.pid)
            self.rss_at_start = machine.memory(self.pid).rss
            self.anonymous_at_start = anonymous_mib(self.pid)
            self._wait_registered()
        except BaseException:
            self.close()
            raise

    def launch(self) -> None:
        with (self.home / "output.txt").open("wb") as output:
            self.process = subprocess.Popen(
                self._command, stdout=output, stderr=output, cwd=self.home, env=self._environment
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def pids(self) -> list[int]:
        """Empty while it does not run."""
        return [self.pid] if self.process.poll() is None else []

    def stop(self) -> None:
        """End it; its store stays."""
        stop(self.process, 40.0)

    def close(self) -> None:
        self.stop()
        if self._own_nameserver:
            self.nameserver.close()
        shutil.rmtree(self.home, ignore_errors=True)

    def tail(self) -> str:
        return (self.home / "output.txt").read_text(errors="replace")[-2000:]

    # --- becoming ready -------------------------------------------------------------------------

    def _wait_stored(self) -> None:
        """Until the first message is acknowledged; a leader may say that its followers lack it still."""
        fields = {
            "producerGroup": "bench", "topic": "FirstMessage", "defaultTopic": "TBW102",
            "defaultTopicQueueNums": "4", "queueId": "0", "sysFlag": "0", "bornTimestamp": "0", "flag": "0",
            "properties": "", "reconsumeTimes": "0", "unitMode": "false", "batch": "false",
        }  # fmt: skip
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                code = self.ask(RequestCode.SEND_MESSAGE, fields, b"hello", timeout=10.0).code
                if code in STORED:
                    return
            except OSError:
                pass
            if self.process.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError(f"{self.kind}'s broker did not start:\n{self.tail()}")
            time.sleep(0.02)

    def _wait_registered(self) -> None:
        shown = f'"{self.address}"'.encode()
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while shown not in request(self.nameserver.address, GET_BROKER_CLUSTER_INFO).body:
            # Apache's may have skipped its first registration; a setting that changes makes it register.
            with contextlib.suppress(OSError):  # a follower that is not there yet
                self.ask(UPDATE_BROKER_CONFIG, body=b"brokerPermission=6")
            if self.process.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError(f"{self.kind}'s broker did not register:\n{self.tail()}")
            time.sleep(0.2)

    # --- asking ---------------------------------------------------------------------------------

    def ask(
        self, code: int, fields: dict[str, str] | None = None, body: bytes = b"", timeout: float = 3.0
    ) -> Answer:
        own = self._credentials
        if own is not None:
            fields = sign(fields or {}, body, own.access_key, own.secret_key)
        return request(self.address, code, fields, body, timeout)

    def create_topic(self, topic: str) -> None:
        fields = {
            "topic": topic, "defaultTopic": "TBW102", "readQueueNums": str(QUEUES),
            "writeQueueNums": str(QUEUES), "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0",
            "order": "false",
        }  # fmt: skip
        answer = self.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields, timeout=20.0)
        if answer.code != 0:
            raise RuntimeError(f"{self.kind} did not create {topic}: {answer.remark}")
        deadline_s = time.monotonic() + 20.0
        while request(self.nameserver.address, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}).code:
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"{self.kind}: topic {topic} has no route")
            time.sleep(0.05)

    def stored(self, topic: str) -> int:
        """Messages of a topic, by the ends of its queues."""
        answer = self.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic}, timeout=20.0)
        if answer.code != 0:
            return 0
        return sum(bounds.max_offset for bounds in TopicStats.decode(answer.body).offset_table.values())

    def consumed(self, topic: str, group: str) -> int:
        """Every pull carries how far the consumer is, so this is up to date to within one pull."""
        fields = {"consumerGroup": group, "topic": topic}
        answer = self.ask(RequestCode.GET_CONSUME_STATS, fields, timeout=20.0)
        if answer.code != 0:
            return 0
        table = ConsumeStats.decode(answer.body).offset_table
        return sum(max(0, at.consumer_offset) for queue, at in table.items() if queue.topic == topic)

    def client(self, jars: Jars, main: str, arguments: list[str]) -> BenchClient:
        """One of Apache's benchmark programs."""
        home = self.home / f"client-{next(self._clients)}"
        words = ["-n", self.nameserver.address, *arguments, "-ri", "1000"]
        return BenchClient(java_command(jars, home, CLIENT_FLAGS, f"{PACKAGE}.{main}", words), home)


class BenchClient:
    """A benchmark program of Apache's that runs until it is stopped."""

    def __init__(self, command: list[str], home: Path) -> None:
        self.output = home / "output.txt"
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                command, stdout=output, stderr=output, cwd=home, env=apache.environment(home)
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def close(self) -> None:
        # They have no end of their own, and no say in the matter: nothing of theirs is needed any more.
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def figures(self) -> dict[str, float]:
        """The newest line of figures, by the words of the program; empty before its tenth second."""
        lines = [line for line in self.output.read_text(errors="replace").splitlines() if "| " in line]
        if not lines:
            return {}
        pairs = (part.rpartition(":") for part in lines[-1].split("|")[1:])
        return {name.strip(): float(value) for name, _, value in pairs if _is_number(value)}


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
