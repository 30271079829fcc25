"""Real Java name servers and brokers as child processes on free ports."""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.rig.ports import free_ports

from .jars import Jars
from .java import Launch, launch
from .wire import GET_BROKER_CLUSTER_INFO, UPDATE_BROKER_CONFIG, request

START_TIMEOUT = 60.0
STOP_TIMEOUT = 60.0  # a clean broker stop waits in many places for threads that wake every 3 s
GUARD = "peers.Guard"
LOGBACK = """\
<configuration>
  <appender name="file" class="ch.qos.logback.core.FileAppender">
    <file>${user.home}/java.log</file>
    <encoder><pattern>%d{HH:mm:ss.SSS} %p %t %c - %m%n</pattern></encoder>
  </appender>
  <root level="${peers.log.level:-INFO}"><appender-ref ref="file"/></root>
</configuration>
"""

_alive: weakref.WeakSet[JavaProcess] = weakref.WeakSet()


class StartFailed(Exception):
    """A Java process ended or stayed silent instead of becoming ready."""


def write_home(home: Path) -> None:
    """Make the least ROCKETMQ_HOME that both lines start with: 4.9 insists on its logback files."""
    conf = home / "conf"
    conf.mkdir(parents=True, exist_ok=True)
    for name in ("logback.xml", "logback_namesrv.xml", "logback_broker.xml", "logback_tools.xml"):
        (conf / name).write_text(LOGBACK, encoding="utf-8")


def log_settings(home: Path) -> dict[str, str]:
    return {
        "rmq.logback.configurationFile": str(home / "conf" / "logback.xml"),
        "logback.configurationFile": str(home / "conf" / "logback.xml"),
        "rocketmq.client.logUseSlf4j": "true",
        "rocketmq.client.logRoot": str(home),
    }


class JavaProcess:
    """One child JVM: started, waited for, stopped, killed.

    The JVM holds the other end of a pipe and halts when it closes, so it cannot outlive the test
    run however that ends.
    """

    kind = "java"
    heap = (64, 256)
    stdout_is_log = True

    def __init__(self, jars: Jars, home: Path) -> None:
        self.jars = jars
        self.home = home
        self._process: subprocess.Popen[bytes] | None = None
        self._launch: Launch | None = None
        self._lock = threading.Lock()
        write_home(home)

    # What a kind of process must say about itself.

    def main(self) -> list[str]:
        raise NotImplementedError

    def settings(self) -> dict[str, str]:
        return log_settings(self.home)

    # Life.

    @property
    def output(self) -> Path:
        return self.home / "output.txt"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, timeout: float = START_TIMEOUT) -> None:
        """Start the JVM and return when it serves."""
        if self.running:
            raise RuntimeError(f"{self} runs already")
        self._launch = launch(
            self.jars,
            self.kind,
            self.main(),
            home=self.home,
            heap=self.heap,
            properties=self.settings(),
        )
        environment = {**os.environ, "ROCKETMQ_HOME": str(self.home)}
        environment.pop("NAMESRV_ADDR", None)
        with self.output.open("wb") as output:
            self._process = subprocess.Popen(
                self._launch.command,
                stdin=subprocess.PIPE,
                stdout=output if self.stdout_is_log else subprocess.PIPE,
                stderr=output,
                cwd=self.home,
                env=environment,
                # A terminal's Ctrl-C is ours to handle, not the child's.
                start_new_session=True,
            )
        _alive.add(self)
        try:
            self._wait_ready(timeout)
        except BaseException:
            self.kill()
            raise

    def _wait_ready(self, timeout: float) -> None:
        # Both servers print this after their ports are open.
        self.wait_for(lambda: "boot success" in self.output.read_text(errors="replace"), timeout)

    def wait_for(self, ready: Callable[[], bool], timeout: float) -> None:
        """Poll ``ready`` while the process lives."""
        deadline = time.monotonic() + timeout
        while not ready():
            if not self.running:
                raise StartFailed(f"{self} ended with {self._exit_code()}\n{self.tail()}")
            if time.monotonic() > deadline:
                raise StartFailed(f"{self} was not ready in {timeout:g} s\n{self.tail()}")
            time.sleep(0.02)

    def stop(self, timeout: float = STOP_TIMEOUT) -> int:
        """End the JVM the clean way (SIGTERM) and return its exit code."""
        with self._lock:
            if self._process is None:
                return 0
            if self.running:
                self._process.send_signal(signal.SIGTERM)
            try:
                code = self._process.wait(timeout)
            except subprocess.TimeoutExpired:
                self._end()
                raise StartFailed(f"{self} did not stop in {timeout:g} s\n{self.tail()}") from None
            if self._launch is not None:
                self._launch.keep_archive()
            self._close()
            return code

    def kill(self) -> None:
        """End the JVM at once (SIGKILL), as a crash would."""
        with self._lock:
            self._end()

    def restart(self, *, clean: bool = True) -> None:
        """Stop (or kill) and start again on the same ports and folders."""
        if clean:
            self.stop()
        else:
            self.kill()
        self.start()

    def finish(self) -> None:
        """End the process at the close of a test run: quickly, unless an archive is to be made."""
        archiving = self._launch is not None and self._launch.archive_made is not None
        if archiving and self.running:
            self.stop()
        else:
            self.kill()

    def _end(self) -> None:
        if self._process is not None:
            if self.running:
                self._process.kill()
            self._process.wait()
            if self._launch is not None:
                self._launch.drop_archive()
            self._close()

    def _close(self) -> None:
        if self._process is not None:
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()
        _alive.discard(self)

    def _exit_code(self) -> int | None:
        return self._process.returncode if self._process else None

    # Looking inside.

    @property
    def log(self) -> Path:
        """Everything RocketMQ logged, all loggers in one file."""
        return self.home / "java.log"

    def tail(self, lines: int = 25) -> str:
        """The end of what the process printed and logged, for error messages."""
        parts = []
        for path in (self.output, self.log):
            if path.exists():
                last = path.read_text(errors="replace").splitlines()[-lines:]
                parts.append(f"--- {path.name}\n" + "\n".join(last))
        return "\n".join(parts)

    def __repr__(self) -> str:
        state = f"pid {self.pid}" if self.running else "down"
        return f"<{type(self).__name__} {self.jars.version} {self.home.name} {state}>"


@atexit.register
def kill_all() -> None:
    """Leave no JVM behind, whatever ended the test run."""
    for process in list(_alive):
        process.kill()


def write_properties(path: Path, properties: Mapping[str, object]) -> None:
    def text(value: object) -> str:
        shown = str(value).lower() if isinstance(value, bool) else str(value)
        return shown.replace("\\", "\\\\")

    lines = [f"{key}={text(value)}" for key, value in properties.items()]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


class JavaNameServer(JavaProcess):
    """Apache's name server."""

    kind = "namesrv"
    heap = (32, 256)

    def __init__(
        self,
        jars: Jars,
        home: Path,
        *,
        port: int | None = None,
        properties: Mapping[str, object] | None = None,
        system: Mapping[str, str] | None = None,
        tls: bool = False,
    ) -> None:
        super().__init__(jars, home)
        self.port = port if port is not None else free_ports(1)[0]
        self.properties = {
            "listenPort": self.port,
            "kvConfigPath": home / "kvConfig.json",
            **(properties or {}),
        }
        self.system = {**_tls_setting(tls), **(system or {})}

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def main(self) -> list[str]:
        config = self.home / "namesrv.conf"
        write_properties(config, self.properties)
        return [GUARD, "org.apache.rocketmq.namesrv.NamesrvStartup", "-c", str(config)]

    def settings(self) -> dict[str, str]:
        return {**super().settings(), **self.system}


class JavaBroker(JavaProcess):
    """Apache's broker, with small files so that a test's store is a few megabytes.

    ``properties`` are lines of broker.conf and win over the defaults here; ``system`` are JVM
    properties.  A broker listens on its port, the port minus two and its replication port.
    """

    kind = "broker"
    heap = (96, 512)

    DEFAULTS: Mapping[str, object] = {
        "brokerIP1": "127.0.0.1",
        "mappedFileSizeCommitLog": 4 * 1024 * 1024,
        "mappedFileSizeConsumeQueue": 20 * 3000,
        "maxHashSlotNum": 10_000,
        "maxIndexNum": 40_000,
        "mappedFileSizeTimerLog": 1024 * 1024,
        "diskMaxUsedSpaceRatio": 99,
        "autoCreateTopicEnable": True,
        "enablePropertyFilter": True,
        # Eight of these threads make every clean stop wait for eight slow loops.
        "reviveQueueNum": 1,
        # 5.x keeps a core busy, looking at the time, until this is over for the first time.
        "transactionMetricFlushInterval": 500,
    }

    def __init__(
        self,
        jars: Jars,
        home: Path,
        nameservers: str | Sequence[str],
        *,
        name: str = "broker-a",
        cluster: str = "DefaultCluster",
        broker_id: int = 0,
        port: int | None = None,
        ha_port: int | None = None,
        store: Path | None = None,
        properties: Mapping[str, object] | None = None,
        system: Mapping[str, str] | None = None,
        tls: bool = False,
        wait_registered: bool = True,
    ) -> None:
        super().__init__(jars, home)
        self.wait_registered = wait_registered
        self.name = name
        self.cluster = cluster
        self.port = port if port is not None else free_ports(1, offsets=(0, -2, 1))[0]
        self.ha_port = ha_port if ha_port is not None else self.port + 1
        self.store = store if store is not None else home / "store"
        self.nameservers = nameservers.split(";") if isinstance(nameservers, str) else list(nameservers)
        # Where to ask whether it registered; elsewhere if a recording stands in between.
        self.ask = self.nameservers
        self.properties = {
            **self.DEFAULTS,
            "namesrvAddr": ";".join(self.nameservers),
            "brokerName": name,
            "brokerClusterName": cluster,
            "brokerId": broker_id,
            "listenPort": self.port,
            "haListenPort": self.ha_port,
            "storePathRootDir": self.store,
            "storePathCommitLog": self.store / "commitlog",
            **(properties or {}),
        }
        self.system = {**_tls_setting(tls), **(system or {})}

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def _wait_ready(self, timeout: float) -> None:
        super()._wait_ready(timeout)
        if self.wait_registered and not self.registered():
            # A 5.x broker that starts quicker than it connects to the name server skips its first
            # registration and tries again ten seconds later.  Setting its permission to what it is
            # makes it register at once.
            request(self.address, UPDATE_BROKER_CONFIG, body=b"brokerPermission=6", timeout=timeout)
            self.wait_for(self.registered, timeout)

    def registered(self) -> bool:
        """Whether every name server lists this broker."""
        try:
            answers = [request(server, GET_BROKER_CLUSTER_INFO) for server in self.ask]
        except OSError:
            return False
        shown = f'"{self.properties["brokerIP1"]}:{self.port}"'.encode()
        return all(shown in answer.body for answer in answers)

    def main(self) -> list[str]:
        config = self.home / "broker.conf"
        write_properties(config, self.properties)
        return [GUARD, "org.apache.rocketmq.broker.BrokerStartup", "-c", str(config)]

    def settings(self) -> dict[str, str]:
        return {**super().settings(), **self.system}


def _tls_setting(tls: bool) -> dict[str, str]:
    # Left alone, every server makes two throw-away certificates at start, which takes seconds.
    return {} if tls else {"tls.server.mode": "disabled"}
