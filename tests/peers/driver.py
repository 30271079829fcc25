"""Talk to the Java driver: one JVM that runs Apache RocketMQ's client for all tests.

``driver/Driver.java`` describes the line protocol; ``call("ops")`` lists the operations.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path
from typing import Any, cast

from .jars import Jars
from .processes import START_TIMEOUT, JavaProcess, StartFailed

CALL_TIMEOUT = 60.0
MAIN = "peers.Driver"

Event = dict[str, Any]


class JavaError(Exception):
    """An operation threw in Java."""

    def __init__(self, op: str, error: Mapping[str, Any]) -> None:
        self.op = op
        self.java_class = str(error["class"])
        self.message = str(error["message"])
        self.code: int | None = error.get("code")
        self.stack = str(error["stack"])
        super().__init__(f"{op}: {self.java_class}: {self.message}")

    @property
    def simple_class(self) -> str:
        return self.java_class.rpartition(".")[2]

    def __str__(self) -> str:
        return f"{super().__str__()}\n{self.stack}"


class JavaDriver(JavaProcess):
    """The driver JVM.

    Its header encoding and its jars are fixed for a JVM's life; a test that needs another kind
    starts a second driver with another ``serialize_type`` or other ``jars``.
    """

    kind = "driver"
    heap = (64, 512)
    stdout_is_log = False

    def __init__(
        self,
        jars: Jars,
        home: Path,
        *,
        serialize_type: str = "JSON",
        system: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(jars, home)
        self.serialize_type = serialize_type
        self.system = dict(system or {})
        self._ids = itertools.count(1)
        self._pending: dict[int, tuple[str, Future[Any]]] = {}
        self._write_lock = threading.Lock()
        self._changed = threading.Condition()
        self._events: list[Event] = []
        self._handlers: dict[str, Callable[[Any], None]] = {}

    def main(self) -> list[str]:
        return [MAIN]

    def settings(self) -> dict[str, str]:
        return {
            **super().settings(),
            "rocketmq.serialize.type": self.serialize_type,
            "peers.log.level": "WARN",
            # Every consumer's first look at its share, and each after a change, would come a second late.
            "rocketmq.client.rebalance.minInterval": "50",
            **self.system,
        }

    def _wait_ready(self, timeout: float = START_TIMEOUT) -> None:
        with self._changed:
            self._events.clear()
        threading.Thread(target=self._read, args=(self._process,), name="driver-reader", daemon=True).start()
        self.wait_for(lambda: self.events("ready") != [], timeout)

    # Calls.

    def submit(self, op: str, **args: Any) -> Future[Any]:
        """Send a request and return a future of its result."""
        number = next(self._ids)
        future: Future[Any] = Future()
        line = json.dumps({"id": number, "op": op, "args": args}) + "\n"
        with self._write_lock:
            process = self._process
            if process is None or process.stdin is None or not self.running:
                raise StartFailed(f"{self} does not run\n{self.tail()}")
            self._pending[number] = (op, future)
            process.stdin.write(line.encode())
            process.stdin.flush()
        return future

    def call(self, op: str, /, *, timeout: float = CALL_TIMEOUT, **args: Any) -> Any:
        """Run one operation and return its result, from any thread."""
        try:
            return self.submit(op, **args).result(timeout)
        except FutureTimeout:
            raise TimeoutError(f"{op} gave no answer in {timeout:g} s\n{self.tail()}") from None

    async def acall(self, op: str, /, *, timeout: float = CALL_TIMEOUT, **args: Any) -> Any:
        """The same for asyncio: the event loop, where our own server may live, keeps running."""
        try:
            return await asyncio.wait_for(asyncio.wrap_future(self.submit(op, **args)), timeout)
        except TimeoutError:
            raise TimeoutError(f"{op} gave no answer in {timeout:g} s\n{self.tail()}") from None

    def mqadmin(self, *args: str, timeout: float = CALL_TIMEOUT) -> str:
        """Run an mqadmin command in the driver JVM and return what it printed to stdout."""
        return cast(str, self.call("mqadmin", timeout=timeout, args=list(args))["out"])

    def cluster_list(self, namesrv: str, *args: str) -> str:
        """Run mqadmin's clusterList. The tool gives a broker three seconds and then shows a row without its
        version and figures: it is asked again, for a minute."""
        deadline = time.monotonic() + CALL_TIMEOUT
        while True:
            printed = self.mqadmin("clusterList", "-n", namesrv, *args)
            rows = [line for line in printed.splitlines() if re.search(r":\d+ ", line)]
            if all(re.search(r"\bV\d", row) for row in rows) or time.monotonic() > deadline:
                return printed

    def mqadmin_full(self, *args: str, timeout: float = CALL_TIMEOUT) -> dict[str, str]:
        """The same with both streams: {"out": ..., "err": ...}."""
        return cast(dict[str, str], self.call("mqadmin", timeout=timeout, args=list(args)))

    async def amqadmin(self, *args: str, timeout: float = CALL_TIMEOUT) -> str:
        return cast(str, (await self.acall("mqadmin", timeout=timeout, args=list(args)))["out"])

    def create_topic(self, namesrv: str, broker: str, topic: str, queues: int = 4, **config: Any) -> None:
        """Create a topic at the broker's address and wait until the name server knows it."""
        self.call("topic.create", namesrv=namesrv, broker=broker, topic=topic, queues=queues, config=config)

    # Events.

    def events(self, name: str) -> list[Any]:
        """The data of every event of that name so far."""
        with self._changed:
            return [event["data"] for event in self._events if event["event"] == name]

    def wait_event(
        self, name: str, timeout: float = CALL_TIMEOUT, where: Callable[[Any], bool] = lambda _: True
    ) -> Any:
        """Take the first event of that name that fits, waiting for it if need be."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while True:
                for position, event in enumerate(self._events):
                    if event["event"] == name and where(event["data"]):
                        return self._events.pop(position)["data"]
                left = deadline - time.monotonic()
                if left <= 0 or not self.running:
                    raise TimeoutError(f"no event {name} in {timeout:g} s")
                self._changed.wait(min(left, 1.0))

    def on(self, name: str, handler: Callable[[Any], None] | None) -> None:
        """Give events of one name to ``handler``, on a thread of its own, instead of keeping them."""
        with self._changed:
            if handler is None:
                self._handlers.pop(name, None)
            else:
                self._handlers[name] = handler

    def clear(self) -> None:
        """Forget events and handlers, between tests."""
        with self._changed:
            self._events.clear()
            self._handlers.clear()

    # Inside.

    def _read(self, process: Any) -> None:
        try:
            for raw in process.stdout:
                self._dispatch(json.loads(raw))
        except ValueError:
            if self.running:  # a closed pipe says ValueError too, and only that is harmless
                raise
        finally:
            with self._write_lock:
                lost, self._pending = self._pending, {}
            for op, future in lost.values():
                future.set_exception(StartFailed(f"the driver ended during {op}\n{self.tail()}"))

    def _dispatch(self, line: dict[str, Any]) -> None:
        if "event" in line:
            with self._changed:
                handler = self._handlers.get(line["event"])
                if handler is None:
                    self._events.append(line)
                    self._changed.notify_all()
            if handler is not None:
                threading.Thread(target=handler, args=(line["data"],), daemon=True).start()
            return
        op, future = self._pending.pop(line["id"])
        if not future.set_running_or_notify_cancel():
            return
        if line["ok"]:
            future.set_result(line["result"])
        else:
            future.set_exception(JavaError(op, line["error"]))

    def stop(self, timeout: float = 20.0) -> int:
        """Shut every client down and end the JVM."""
        if self.running:
            self.call("exit", timeout=timeout)
        return super().stop(timeout)
