"""The sink of the format ``rocketmq``: rows become messages, in batch and streaming queries.

``body`` is needed and may be neither null nor empty; of all other columns null means that a message has none.
See :data:`kerolox.spark.sink.row_columns.COLUMNS` and ``SINK`` for columns and options.

``at-least-once``: a task returns when brokers have stored all its rows, so nothing is lost; a task or batch
that is run again sends all of them again. The copies have the same message ids. ``effectively-once``: it
sends what is missing, see :mod:`kerolox.spark.sink.effectively_once` for how, and for what it takes.

Order: rows with the same ordering key lie in one queue in the order of their partition, and so do rows with
the same queue. Rows with neither go to the queues in turn.
"""

from __future__ import annotations

import atexit
import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from kerolox.client.calls.readers import LEADER_ALONE
from kerolox.client.errors import InvalidMessage
from kerolox.client.names import with_namespace
from kerolox.client.sockets.sending import SocketSender
from kerolox.client.sockets.socket_cluster import SocketCluster
from kerolox.clock import SYSTEM_CLOCK
from kerolox.errors import KeroloxError, OptionError
from kerolox.protocol.reserved import TEMPLATE_TOPIC
from kerolox.spark.short_errors import tells_shortly
from kerolox.spark.sink.effectively_once import Beginning, QueueEnds, Stored, ends_of
from kerolox.spark.sink.notes import LocalFolder, Notes, open_folder
from kerolox.spark.sink.options import EFFECTIVELY_ONCE, SinkSettings, check_columns, read_settings
from kerolox.spark.sink.outgoing import Encoder
from kerolox.spark.sink.requests import Packer
from kerolox.spark.sink.row_columns import COLUMNS
from kerolox.spark.sink.row_ids import RowIds

if TYPE_CHECKING:
    from kerolox.spark.bodies.declared import Declared

log = logging.getLogger(__name__)

CHECKPOINT: Final = "checkpointlocation"


@dataclass(frozen=True)
class Sent(WriterCommitMessage):
    """Counts of a task: rows sent, and rows stored before."""

    rows: int = 0  # sent by it
    there: int = 0  # that were there already
    requests: int = 0
    repeated: int = 0  # requests sent again: readers may see their messages twice


@tells_shortly
class BatchSink(DataSourceArrowWriter):
    """Writer of one table."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise OptionError(
                "mode", "overwrite", 'append (.mode("append")): messages in a topic cannot be replaced'
            )
        self.settings = read_settings(options)
        check_columns(schema, self.settings)
        offsets = _ends(self.settings) if self.settings.once else {}
        self.beginning = Beginning(f"job/{uuid.uuid4()}", SYSTEM_CLOCK.wall_ms(), offsets)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        task = TaskContext.get()
        assert task is not None
        return write_rows(iterator, self.settings, self.beginning, task, again=task.attemptNumber() > 0)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _tell("written", messages, self.beginning.write)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _tell("write_failed", messages, self.beginning.write)


@tells_shortly
class StreamSink(DataSourceStreamArrowWriter):
    """Writes one micro-batch. Spark makes one for the tasks of a batch, and another one to commit it."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise OptionError(
                "outputMode", "complete", "append: messages in a topic cannot be replaced by a new result"
            )
        self.settings = read_settings(options)
        check_columns(schema, self.settings)
        self.checkpoint = options.get(CHECKPOINT, "")
        self.batch: int | None = None  # known here when every row is to be sent once
        self.run_before = False
        if self.settings.once:
            self.beginning = self._begin()
        else:
            self.beginning = Beginning("", _planned_ms(self.checkpoint))

    def _begin(self) -> Beginning:
        """Return the note of the batch: that of its first run, or a new one."""
        if not self.checkpoint:
            raise OptionError(
                "checkpointLocation",
                self.checkpoint,
                f"to be given as an option of the query: {EFFECTIVELY_ONCE} keeps notes there, and a sink is "
                "not told of spark.sql.streaming.checkpointLocation",
            )
        notes = Notes(open_folder(self.checkpoint))
        self.batch = notes.batch()
        found = notes.find(self.batch)
        self.run_before = found is not None
        if found is not None:
            return found
        made = Beginning(
            write_name(notes.query(), self.batch),
            notes.started_ms(self.batch) or SYSTEM_CLOCK.wall_ms(),
            _ends(self.settings),
        )
        notes.keep(self.batch, made)
        return made

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        task = TaskContext.get()
        assert task is not None
        query = task.getLocalProperty("sql.streaming.queryId")
        batch = task.getLocalProperty("streaming.sql.batchId")
        write = write_name(query or "", int(batch or -1))
        beginning = self.beginning
        if not self.settings.once:
            beginning = Beginning(write, beginning.started_ms)
        elif write != beginning.write:
            raise KeroloxError(
                f"this is batch {batch} of query {query}, but the checkpoint was at {beginning.write} when "
                "it began: does another query use the same checkpointLocation?"
            )
        again = self.run_before or task.attemptNumber() > 0
        return write_rows(iterator, self.settings, beginning, task, again=again)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        if self.settings.once:
            Notes(open_folder(self.checkpoint)).finish(batchId)
        _tell("batch_written", messages, f"batch {batchId}")

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        _tell("batch_failed", messages, f"batch {batchId}")


def write_name(query: str, batch: int) -> str:
    """Return the name of a micro-batch, the same in every run of it."""
    return f"{query}/{batch}"


# --- in a task ----------------------------------------------------------------------------------------


def write_rows(
    iterator: Iterator[pa.RecordBatch],
    settings: SinkSettings,
    beginning: Beginning,
    task: TaskContext,
    *,
    again: bool,
) -> Sent:
    """Send the rows of one task, and wait until all are stored. ``again``: some may be there already."""
    partition = task.partitionId()
    if settings.once:
        check_attempts(task)
        if beginning.done:  # only Spark's own note of the batch was missing
            return Sent(there=sum(batch.num_rows for batch in iterator))
    ids = RowIds(beginning.write, partition, beginning.started_ms)
    encoder = Encoder(
        ids,
        topic=settings.topic,
        namespace=settings.cluster.namespace,
        compress_from=settings.compress_from,
        message_bytes_max=settings.message_bytes_max,
        once=settings.once,
    )
    sender = _sender(settings)
    sent_before, asked_before, repeated_before = sender.stored, sender.requests, sender.repeated
    stored: Stored | None = None
    if settings.once:
        stored = Stored(sender, beginning, ids, settings.group, settings.settle_s)
        sender.find_missing = stored.missing_of
    packer = Packer(
        sender.send,
        batch_bytes=settings.batch_bytes,
        batch_count=settings.batch_rows,
        compress_from=settings.compress_from,
    )
    # Fixed for the whole task, so that rows of a key stay in one queue when brokers come or go.
    queues = lru_cache(maxsize=None)(sender.queues)
    try:
        for batch in iterator if settings.bodies is None else _with_bodies(iterator, settings.bodies):
            if not batch.num_rows:
                continue
            for topic, queue, rows in encoder.groups(batch, queues):
                if again and stored is not None:
                    rows = stored.missing(topic, rows)
                packer.add(topic, queue, rows)
        packer.finish()
        sender.finish()
        if again and stored is not None:
            stored.check(partition)
    except InvalidMessage as error:
        _forget(settings)
        raise InvalidMessage(
            f"partition {partition} of what is written: {error} (rows are counted from 0; "
            f"monotonically_increasing_id() of the first is {partition << 33})"
        ) from None
    except BaseException:
        _forget(settings)  # with what is still on its way
        raise
    return Sent(
        sender.stored - sent_before,
        0 if stored is None else stored.skipped,
        sender.requests - asked_before,
        sender.repeated - repeated_before,
    )


def _with_bodies(batches: Iterator[pa.RecordBatch], bodies: Declared) -> Iterator[pa.RecordBatch]:
    from kerolox.spark.bodies.rows import with_bodies

    return with_bodies(batches, bodies, COLUMNS)


def check_attempts(task: TaskContext) -> None:
    """Raise an error for settings that allow parallel or unnoticed second attempts of a task."""
    if (task.getLocalProperty("spark.speculation") or "").lower() == "true":
        raise OptionError(
            "deliveryGuarantee",
            EFFECTIVELY_ONCE,
            "spark.speculation = false: of two attempts of a task at the same time, both would send",
        )
    master = task.getLocalProperty("spark.master") or "local"
    stages = task.getLocalProperty("spark.stage.maxConsecutiveAttempts")
    if master != "local" and not master.startswith("local[") and stages != "1":
        raise OptionError(
            "deliveryGuarantee",
            EFFECTIVELY_ONCE,
            "spark.stage.maxConsecutiveAttempts = 1 on a cluster: when shuffle files are lost, the tasks of "
            "a stage are started again beside those that still run, and do not know that they are repeated. "
            "With it the batch fails, and what is missing is sent when it is run again",
        )


# Workers are used for many tasks, one at a time: connections stay open from one to the next.
_senders: dict[SinkSettings, SocketSender] = {}


def _sender(settings: SinkSettings) -> SocketSender:
    sender = _senders.get(settings)
    if sender is None:
        while _senders:
            _forget(next(iter(_senders)))
        sender = _senders[settings] = _open(settings)
    return sender


def _open(settings: SinkSettings) -> SocketSender:
    return SocketSender(
        SocketCluster(settings.cluster, patience_s=settings.patience_s, read_from=LEADER_ALONE),
        settings.group,
        in_flight=settings.in_flight,
        retries=settings.retries,
        give_up_s=settings.give_up_s,
        template_topic=TEMPLATE_TOPIC if settings.create_topics else "",
    )


def _forget(settings: SinkSettings) -> None:
    sender = _senders.pop(settings, None)
    if sender is not None:
        sender.close()
        sender.cluster.close()


@atexit.register
def _forget_all() -> None:
    for settings in list(_senders):
        _forget(settings)


# --- at the driver ------------------------------------------------------------------------------------


def _ends(settings: SinkSettings) -> QueueEnds:
    """How far the queues are that will be written, if that is known: rows may name topics themselves."""
    if settings.topic is None:
        return {}
    sender = _open(settings)
    try:
        return ends_of(sender, [with_namespace(settings.cluster.namespace, settings.topic)])
    finally:
        sender.close()
        sender.cluster.close()


def _planned_ms(checkpoint: str) -> int:
    """When Spark planned the batch, if that is to be had without effort: it becomes part of message ids."""
    try:
        folder = open_folder(checkpoint)
        if not isinstance(folder, LocalFolder):
            return 0
        notes = Notes(folder)
        return notes.started_ms(notes.batch())
    except (KeroloxError, OSError):
        return 0


def _tell(event: str, messages: Sequence[WriterCommitMessage | None], what: str) -> None:
    sent = [message for message in messages if isinstance(message, Sent)]
    log.info(
        "%s what=%r rows=%d there_already=%d requests=%d repeated=%d tasks_failed=%d",
        event,
        what,
        sum(message.rows for message in sent),
        sum(message.there for message in sent),
        sum(message.requests for message in sent),
        sum(message.repeated for message in sent),
        len(messages) - len(sent),
    )
