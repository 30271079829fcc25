"""Apache's Java client, as the stories speak of it."""

from __future__ import annotations

import base64
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from ..driver import JavaDriver, JavaError

log = logging.getLogger(__name__)

Record = dict[str, Any]
WAIT_S = 60.0


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = WAIT_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not in {timeout_s:g} s: {what}"
        time.sleep(0.02)


def together(*actions: Callable[[], Any]) -> list[Any]:
    """Run all at once, each on a thread of its own; their results in order."""
    with ThreadPoolExecutor(len(actions)) as threads:
        return [each.result() for each in [threads.submit(action) for action in actions]]


class Handle:
    """Something in the driver that lives until it is stopped."""

    def __init__(self, driver: JavaDriver, handle: str) -> None:
        self.driver = driver
        self.handle = handle

    def do(self, op: str, /, **args: Any) -> Any:
        return self.driver.call(op, handle=self.handle, **args)

    def method(self, name: str, /, *args: Any) -> Any:
        """Any public method of the Java object."""
        return self.driver.call("call", handle=self.handle, method=name, args=list(args))

    def stop(self) -> None:
        self.do("shutdown")


class Producer(Handle):
    def send(self, topic: str, text: str = "x", /, **args: Any) -> Any:
        """``args``: those of the driver's send (mode, queue, selector, ...); the rest is the message's."""
        how = {name: args.pop(name) for name in ("mode", "queue", "selector", "arg") if name in args}
        message = {"topic": topic, **({} if "body" in args else {"text": text}), **args}
        return self.do("producer.send", message=message, **how)

    def send_many(self, topic: str, count: int, /, **args: Any) -> Any:
        """Numbered bodies; everything has to be acknowledged."""
        sent = self.do("producer.sendMany", topic=topic, count=count, timeout=600.0, **args)
        assert (sent["sent"], sent["failed"]) == (count, 0), sent["errors"]
        return sent

    def send_batch(self, messages: list[dict[str, Any]], /, **args: Any) -> Any:
        return self.do("producer.sendBatch", messages=messages, **args)


class Push(Handle):
    def wait(self, count: int, *, distinct: bool = True, timeout_s: float = WAIT_S) -> dict[str, int]:
        """Wait for so many messages; which of them, :meth:`drain` says."""
        seen = self.do(
            "push.waitCount", count=count, distinct=distinct, timeoutMs=int(timeout_s * 1000),
            timeout=timeout_s + 20,
        )  # fmt: skip
        assert seen["reached"], f"{seen} of {count} in {timeout_s:g} s"
        return dict(seen)

    def count(self) -> int:
        return int(self.do("push.waitCount", count=0, timeoutMs=0)["count"])

    def drain(self) -> list[Record]:
        return list(self.do("push.drain"))

    def stop_keeping(self, records: list[Record]) -> None:
        """Shut down the clean way; what it received until then is added to ``records``."""
        records += self.do("push.leave")

    def take(self, count: int) -> list[Record]:
        self.wait(count)
        return self.drain()


class Lite(Handle):
    def poll(self, count: int, *, timeout_s: float = WAIT_S) -> list[Record]:
        """Poll until so many messages came."""
        found: list[Record] = []
        deadline = time.monotonic() + timeout_s
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count} in {timeout_s:g} s"
            found += self.do("lite.poll", timeoutMs=1000)
        return found

    def seek(self, queue: dict[str, Any], offset: int | str) -> None:
        self.do("lite.seek", queue=queue, offset=offset)

    def poll_from(self, queue: dict[str, Any], offset: int | str, count: int) -> list[Record]:
        """Seek, then poll until so many messages came; where none came at all, seek again.

        Java's client forgets a seek now and then: the fetch that a seek cancels may be between its
        look at being cancelled and its look at the place sought, and then takes the place with it.
        """
        found: list[Record] = []
        deadline = time.monotonic() + WAIT_S
        while not found:
            assert time.monotonic() < deadline, f"none of {count} from {offset} in {WAIT_S:g} s"
            self.seek(queue, offset)
            found = self.do("lite.poll", timeoutMs=5000)
        return found + self.poll(count - len(found))


class Load(Handle):
    """Producers that send in order, lane by lane, and repeat until acknowledged. See Load.java."""

    def more(self, count: int, timeout_s: float = WAIT_S) -> None:
        reached = self.do("load.wait", more=count, timeoutMs=int(timeout_s * 1000), timeout=timeout_s + 20)
        assert reached, self.do("load.progress")

    def end(self) -> dict[str, Any]:
        """Stop sending; what was acknowledged: per lane the numbers below ``acked[lane]``."""
        return dict(self.do("load.stop", timeout=WAIT_S))


class Client:
    """A driver that works with one name server."""

    def __init__(
        self, driver: JavaDriver, nameserver: str, kind: str = "ours", keys: Mapping[str, str] | None = None
    ) -> None:
        self.driver = driver
        self.nameserver = nameserver
        self.kind = kind
        self.keys = dict(keys or {})  # accessKey and secretKey

    def _start(self, op: str, **args: Any) -> str:
        args = {**self.keys, **args}
        try:
            return str(self.driver.call(op, namesrv=self.nameserver, **args))
        except JavaError as error:
            # Java's client gives up for good if its first request fails. Two things come under this name: the
            # client's own time was up before it sent anything, as a young JVM's can be when the machine is
            # busy; and a connection that closed. The latter is excused with Apache's servers only: ours must
            # never do it.
            if "RemotingSendRequestException" not in error.stack:
                raise
            if self.kind != "apache" and "RemotingTimeoutException" not in error.stack:
                raise
            log.warning("once more op=%s at=%s error=%s", op, self.kind, error.stack)
            return str(self.driver.call(op, namesrv=self.nameserver, **args))

    def producer(self, group: str = "pid_scenarios", **args: Any) -> Producer:
        return Producer(self.driver, self._start("producer.start", group=group, **args))

    def push(self, group: str, topic: str, expression: str = "*", /, **args: Any) -> Push:
        """A push consumer that begins at the first message, unless its options say otherwise."""
        options = {"consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", **args.pop("options", {})}
        subscriptions = [{"topic": topic, "expression": expression, "type": args.pop("type", "TAG")}]
        return Push(
            self.driver,
            self._start("push.start", group=group, subscriptions=subscriptions, options=options, **args),
        )

    def lite(self, group: str, **args: Any) -> Lite:
        return Lite(self.driver, self._start("lite.start", group=group, **args))

    def pull(self, group: str, **args: Any) -> Handle:
        return Handle(self.driver, self._start("pull.start", group=group, **args))

    def admin(self) -> Handle:
        return Handle(self.driver, self._start("admin.start"))

    def load(self, topic: str, *, lanes: int, **args: Any) -> Load:
        group = args.pop("group", "pid_load")
        return Load(self.driver, self._start("load.start", topic=topic, group=group, lanes=lanes, **args))

    def replier(self, topic: str, group: str, word: str) -> Handle:
        """A consumer that replies to each message with a word before its text."""
        return Handle(self.driver, self._start("replier.start", topic=topic, group=group, word=word))

    def mqadmin(self, command: str, *args: str) -> str:
        words = [command, "-n", self.nameserver, *args]
        return str(self.driver.call("mqadmin", args=words, **self.keys)["out"])

    def later(self, action: Callable[[], Any]) -> Future[Any]:
        """Start on another thread."""
        threads = ThreadPoolExecutor(1)
        try:
            return threads.submit(action)
        finally:
            threads.shutdown(wait=False)


# --- what was received ---------------------------------------------------------------------------------


def body(record: Record) -> bytes:
    return base64.b64decode(record["body"])


def ids(records: Iterable[Record]) -> set[str]:
    return {record["msgId"] for record in records}


def lane_and_number(record: Record) -> tuple[int, int]:
    lane, number, _ = body(record).split(b":", 2)
    return int(lane), int(number)


def missing(records: Iterable[Record], acked: list[int]) -> dict[int, list[int]]:
    """Numbers of each lane that were acknowledged and not received."""
    seen: dict[int, set[int]] = defaultdict(set)
    for record in records:
        lane, number = lane_and_number(record)
        seen[lane].add(number)
    lost = {lane: sorted(set(range(count)) - seen[lane])[:10] for lane, count in enumerate(acked)}
    return {lane: numbers for lane, numbers in lost.items() if numbers}


def out_of_order(records: Iterable[Record]) -> list[str]:
    """Where a lane's messages came too early. A step back is a repetition, which is allowed; a step
    forward over a number that nobody had seen is not."""
    highest: dict[int, int] = defaultdict(lambda: -1)
    wrong = []
    for record in sorted(records, key=lambda each: (each["receivedAt"], each["queueOffset"])):
        lane, number = lane_and_number(record)
        if number > highest[lane] + 1:
            wrong.append(f"lane {lane}: {number} after {highest[lane]}")
        highest[lane] = max(highest[lane], number)
    return wrong


def place(offset_msg_id: str) -> tuple[str, int]:
    """The address and the log offset an offset message id stands for."""
    raw = bytes.fromhex(offset_msg_id)
    host, port, offset = raw[:4], int.from_bytes(raw[4:8]), int.from_bytes(raw[8:])
    return f"{'.'.join(str(part) for part in host)}:{port}", offset
