"""What the tests of the sink share: messages read back, and sinks that fail where they are told to."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kerolox.client.messages import Received
from kerolox.client.sockets.socket_cluster import SocketCluster
from kerolox.spark.datasource import RocketMQ


def stored(nameserver: str, topic: str) -> list[Received]:
    """All messages of a topic, queue by queue in order."""
    with SocketCluster(nameserver) as cluster:
        found: list[Received] = []
        for queue in cluster.route(topic, fresh=True).readable:
            start, end = cluster.min_offset(queue), cluster.max_offset(queue)
            found += cluster.read(queue, start, end, group="look", count=1024)
        return found


def texts(nameserver: str, topic: str) -> list[str]:
    return sorted(message.text for message in stored(nameserver, topic))


class Trap:
    """Where a sink fails: ``step`` of a task or commit, the first time it comes there.

    ``before``, ``middle`` and ``after`` the sends of partition 0; in ``commit`` before or ``committed`` after
    the sink's own. ``how``: ``raise``, or ``exit`` the process at once.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self.step = options.get("trap", "")
        self.how = options.get("trapby", "raise")
        self.times = int(options.get("traptimes", "1"))
        self.folder = Path(options["trapfolder"])

    def spring(self, step: str) -> None:
        if step != self.step:
            return
        number = len(list(self.folder.glob(f"{step}.*")))
        if number >= self.times:
            return
        (self.folder / f"{step}.{number}").touch()
        if self.how == "exit":
            os._exit(7)
        raise RuntimeError(f"trapped {step}")

    def around(self, iterator: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        task = TaskContext.get()
        assert task is not None
        chosen = task.partitionId() == 0
        if chosen:
            self.spring("before")
        for number, batch in enumerate(iterator):
            if number and chosen:
                self.spring("middle")
            yield batch


TRAPS = ("trap", "trapby", "traptimes", "trapfolder")


def without_traps(options: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in options.items() if name not in TRAPS}


class TrappedSource(RocketMQ):
    """``rocketmq`` whose sinks run into traps."""

    @classmethod
    def name(cls) -> str:
        return "trapped"

    def writer(self, schema: Any, overwrite: bool) -> Any:
        from kerolox.spark.sink.sink import BatchSink

        class Sink(BatchSink):
            def __init__(self, options: Mapping[str, str]) -> None:
                self.trap = Trap(options)
                super().__init__(without_traps(options), schema, overwrite)

            def write(self, iterator: Iterator[Any]) -> Any:
                return trapped_write(self, super().write, iterator)

        return Sink(dict(self.options))

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        from kerolox.spark.sink.sink import StreamSink

        class Sink(StreamSink):
            def __init__(self, options: Mapping[str, str]) -> None:
                self.trap = Trap(options)
                super().__init__(without_traps(options), schema, overwrite)

            def write(self, iterator: Iterator[Any]) -> Any:
                return trapped_write(self, super().write, iterator)

            def commit(self, messages: Sequence[Any], batchId: int) -> None:
                self.trap.spring("commit")
                super().commit(messages, batchId)
                self.trap.spring("committed")

        return Sink(dict(self.options))


def trapped_write(sink: Any, write: Any, iterator: Iterator[Any]) -> Any:
    from pyspark import TaskContext

    sent = write(sink.trap.around(iterator))
    task = TaskContext.get()
    assert task is not None
    if task.partitionId() == 0:
        sink.trap.spring("after")
    return sent
