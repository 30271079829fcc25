"""A run of a pipeline: starts its flows, watches them, restarts them after failures, and stops them.

Each sink is a streaming query with its own checkpoint; so is each source whose bodies may not fit. Tables
that are not streams are written once, by a thread; each archive has a thread too. A flow that fails with a
temporary error is restarted after a pause, from its checkpoint. A flow that fails permanently ends the run,
unless the pipeline has ``keep_going``.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Protocol

from kerolox.errors import KeroloxError
from kerolox.pipeline.flows.begins import CHECKPOINTS, begin_options
from kerolox.pipeline.flows.definition import LakeSink, Pipeline, Sink, SparkSink, TopicSink, Trigger
from kerolox.pipeline.flows.document import Document
from kerolox.pipeline.flows.figures import RunFigures
from kerolox.pipeline.flows.flow import BatchFlow, StreamFlow, failure_text, is_for_good
from kerolox.pipeline.flows.plan import MISFITS, Plan, UnknownFlow, flow_names, sink_text
from kerolox.pipeline.flows.tables import Tables
from kerolox.pipeline.flows.writers import SparkWriter, TopicWriter, Writer, topic_sink_options
from kerolox.pipeline.lake.storage import Storage, open_storage
from kerolox.store.disk.files import Files
from kerolox.store.disk.lock import StoreLock
from kerolox.store.errors import StoreLocked

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 0.1
RECENT: Final = "spark.sql.streaming.numRecentProgressUpdates"
STOP_S: Final = 120.0  # seconds to wait for a batch to end
PROGRESS_KEPT: Final = 1000  # progress reports that Spark keeps of a query until they are read


class Flow(Protocol):
    """A flow, which runs until it is done, fails, or is stopped."""

    name: str

    def start(self) -> None: ...
    @property
    def is_active(self) -> bool: ...
    @property
    def is_idle(self) -> bool: ...
    def failure(self) -> BaseException | None: ...
    def told(self) -> list[dict[str, Any]]:
        """Return the progress of the batches completed since the last call."""

    def halt(self) -> None: ...
    def stop(self) -> None: ...


class ThreadFlow:
    """Flow without a streaming query: a thread whose work checks ``halted`` now and then."""

    def __init__(self, name: str, work: Callable[[threading.Event], None]) -> None:
        self.name = name
        self._work = work
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._halted = threading.Event()

    def start(self) -> None:
        from pyspark import InheritableThread

        self._error = None
        self._thread = InheritableThread(target=self._run, daemon=True, name=self.name)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._work(self._halted)
        except BaseException as error:
            self._error = error

    @property
    def is_active(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    @property
    def is_idle(self) -> bool:
        return not self.is_active

    def failure(self) -> BaseException | None:
        return self._error

    def told(self) -> list[dict[str, Any]]:
        return []

    def halt(self) -> None:
        self._halted.set()

    def stop(self) -> None:
        self._halted.set()
        if self._thread is not None:
            self._thread.join(STOP_S)


@dataclass
class _Watched:
    """A flow with its restart state."""

    flow: Flow
    failures: int = 0
    batches: int = 0  # batches done at the last failure
    start_s: float | None = 0.0  # time to start it; None: it runs or has ended
    is_over: bool = False


@dataclass
class Result:
    """Outcome of a run."""

    failed: dict[str, str] = field(default_factory=dict)  # error by flow
    stopped: dict[str, str] = field(default_factory=dict)  # flows stopped by a check while others continued
    interrupted: bool = False


class Run:
    """One run of a pipeline."""

    def __init__(
        self,
        plan: Plan,
        document: Document,
        *,
        once: bool = False,
        only: Iterable[str] = (),
        run_id: str = "",
    ) -> None:
        self.plan = plan
        self.pipeline: Pipeline = plan.pipeline
        self.document = document
        self.storage: Storage = open_storage(self.pipeline.storage, self.pipeline.storage_options)
        self.run_id = run_id or f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"
        self.figures = RunFigures(self.pipeline.name, self.run_id)
        self.only = set(only)
        for name in self.only:
            if name not in flow_names(self.pipeline):
                raise UnknownFlow(name, self.pipeline)
        self._once = once
        self._lock = StoreLock(Files(), self.storage.lock_folder)
        self._flows: list[_Watched] = []
        self._spark: SparkSession | None = None
        self.result = Result()
        self.stopping = threading.Event()

    def wants(self, name: str) -> bool:
        return not self.only or name in self.only

    # --- before -----------------------------------------------------------------------------------------

    def __enter__(self) -> Run:
        self.storage.lock_folder.mkdir(parents=True, exist_ok=True)
        try:
            self._lock.take()
        except StoreLocked as error:
            raise KeroloxError(
                f"another run of {self.pipeline.name} uses {self.storage}: {error}. Wait for it, or stop it"
            ) from None
        return self

    def __exit__(self, *exc: object) -> None:
        self._lock.release()

    def prepare(self, spark: SparkSession) -> None:
        """Create the DataFrames and the flows; nothing runs yet. Raises PipelineInvalid."""
        self._spark = own_session(spark, self.pipeline)
        tables = Tables(self._spark, self.plan, self.document, self._begin)
        sinks = {name: sink for name, sink in self.pipeline.sinks.items() if self.wants(name)}
        tables.make(self.plan.reads[f"sink {name}"][0] for name in sinks)
        for name, sink in sinks.items():
            table = tables.made[self.plan.reads[f"sink {name}"][0]]
            self._add_sink(name, sink, table)
        for name, rows in tables.misfits.items():
            self._add(
                f"{MISFITS}{name}",
                "bad rows",
                self._flow(f"{MISFITS}{name}", rows, None, self.pipeline.trigger),
            )
        for name in self.pipeline.archives:
            if self.wants(name):
                self._add_archive(name)

    def _begin(self, source: str, options: dict[str, str]) -> dict[str, str]:
        return begin_options(self.storage, source, options, self.plan.readers(source))

    def _add(self, name: str, kind: str, flow: Flow) -> None:
        self._flows.append(_Watched(flow))
        self.figures.flow(name, kind)

    def _add_sink(self, name: str, sink: Sink, table: DataFrame) -> None:
        trigger = sink.trigger or self.pipeline.trigger
        mode = "append" if isinstance(sink, LakeSink) else sink.mode
        writer = writer_of(self.pipeline, name, sink, self.checkpoint(name))
        native = sink if isinstance(sink, SparkSink) and sink.stream else None
        self._add(name, sink_text(sink)[0], self._flow(name, table, writer, trigger, mode, native))

    def _flow(
        self,
        name: str,
        table: DataFrame,
        writer: Writer | None,
        trigger: Trigger,
        mode: str = "append",
        native: SparkSink | None = None,
    ) -> Flow:
        checks = {key: check for key, check in self.pipeline.checks.items() if check.of == name}
        side = None
        sets_aside = any(check.then == "set_aside" for check in checks.values())
        if self.pipeline.bad_rows is not None and (writer is None or sets_aside or writer.may_refuse_rows):
            from kerolox.pipeline.flows.lake_tables import open_lake

            side = open_lake(self.pipeline.bad_rows, self.pipeline.name, f"{name}.bad_rows")
            side.counts_repeated = False  # they were counted when they were first written
        work = BatchFlow(name, self.pipeline.name, writer, checks, side, self.figures)
        if not table.isStreaming:
            return ThreadFlow(name, self._table_work(work, table))
        wanted = Trigger(once=True) if self._once else trigger
        return StreamFlow(
            name, self.pipeline.name, table, work, self.checkpoint(name), wanted, mode=mode, native=native
        )

    def _table_work(self, work: BatchFlow, table: DataFrame) -> Callable[[threading.Event], None]:
        def write(halted: threading.Event) -> None:
            began_s = time.monotonic()
            # The run's id replaces the query's id, so retries within the run write the rows once.
            rows = work.run(table, 0, "" if isinstance(work._writer, TopicWriter) else f"table-{self.run_id}")
            self.figures.add_batch(work.name, rows, time.monotonic() - began_s, 0)

        return write

    def _add_archive(self, name: str) -> None:
        from kerolox.pipeline.flows.archive_flow import archive_work

        definition = self.pipeline.archives[name]
        assert self._spark is not None
        work = archive_work(
            self.pipeline, name, definition, self._spark.sparkContext, self.figures,
            once=self._once or self.pipeline.trigger.once,
        )  # fmt: skip
        self._add(name, f"{definition.format} archive", ThreadFlow(name, work))

    def checkpoint(self, flow: str) -> str:
        return self.storage.name(f"{CHECKPOINTS}/{flow}")

    # --- running ----------------------------------------------------------------------------------------

    def run(self) -> Result:
        """Run until all flows are done, one has failed permanently, or ``stopping`` is set."""
        self.figures.state = "running"
        try:
            while not all(each.is_over for each in self._flows):
                if self.stopping.is_set():
                    self.result.interrupted = True
                    self._stop_all("stopped")
                    break
                for each in self._flows:
                    self._watch(each)
                if self.result.failed and not self.pipeline.keep_going:
                    self._stop_all("stopped")
                    break
                self.stopping.wait(LOOK_EVERY_S)
        finally:
            for each in self._flows:
                each.flow.stop()
                self._count(each.flow)
            with self.figures.lock:
                self.figures.ended_ms = time.time_ns() // 1_000_000
                self.figures.state = "failed" if self.result.failed else "done"
                self.figures.changes += 1
        return self.result

    def _watch(self, each: _Watched) -> None:
        if each.is_over:
            return
        name = each.flow.name
        self._count(each.flow)
        if each.start_s is not None:
            if time.monotonic() >= each.start_s:
                self._start(each)
            return
        if each.flow.is_active:
            return
        error = each.flow.failure()
        if error is None:
            each.is_over = True
            self.figures.set_state(name, "done")
        else:
            self._failed(each, error)

    def _start(self, each: _Watched) -> None:
        each.start_s = None
        self.figures.set_state(each.flow.name, "running")
        try:
            each.flow.start()
        except Exception as error:  # Spark rejects a plan, or a checkpoint does not fit
            self._failed(each, error)

    def _failed(self, each: _Watched, error: BaseException) -> None:
        name = each.flow.name
        text = self.document.hide(failure_text(error))
        done = self.figures.flow(name).batches
        each.failures = 1 if done > each.batches else each.failures + 1
        each.batches = done
        retry = self.pipeline.retry
        if is_for_good(error) or each.failures > retry.tries:
            each.is_over = True
            self.result.failed[name] = text
            state = "stopped" if getattr(error, "ends_run", True) is False else "failed"
            self.figures.add_failure(name, text, "given up")
            self.figures.set_state(name, state, text)
            log.error("flow_failed pipeline=%s flow=%s error=%r", self.pipeline.name, name, text)
            if state == "stopped":  # by a check: other flows continue, and the result reports it
                self.result.stopped[name] = self.result.failed.pop(name)
            return
        wait_s = retry.wait_s(each.failures)
        each.start_s = time.monotonic() + wait_s
        with self.figures.lock:
            self.figures.flow(name).restarts += 1
        self.figures.add_failure(name, text, f"restarted after {wait_s:g} s")
        self.figures.set_state(name, "restarting", text)
        log.warning(
            "flow_restarts pipeline=%s flow=%s failures=%d wait_s=%g error=%r",
            self.pipeline.name, name, each.failures, wait_s, text,
        )  # fmt: skip

    def _stop_all(self, state: str) -> None:
        """Let running batches end, and start no others."""
        running = [each for each in self._flows if not each.is_over]
        for each in running:
            each.flow.halt()
        deadline_s = time.monotonic() + STOP_S
        waiting = [each for each in running if each.start_s is None]
        while waiting and time.monotonic() < deadline_s:
            for each in [each for each in waiting if each.flow.is_idle]:
                each.flow.stop()
                waiting.remove(each)
            time.sleep(LOOK_EVERY_S / 2)
        for each in running:
            each.flow.stop()
            each.is_over = True
            self.figures.set_state(each.flow.name, state)

    def _count(self, flow: Flow) -> None:
        """Add completed batches to the figures.

        They are read from the query itself: Spark notifies listeners later, and not at all about batches
        that end with the run.
        """
        for progress in flow.told():
            self.figures.add_progress(flow.name, progress)


def own_session(spark: SparkSession, pipeline: Pipeline) -> SparkSession:
    """Return a session for one pipeline, with its own table names and settings and shared cores."""
    from kerolox.spark import register

    own = spark.newSession()
    for name, value in pipeline.spark.conf.items():
        if own.conf.isModifiable(name):
            own.conf.set(name, value)
    if RECENT not in pipeline.spark.conf:
        own.conf.set(RECENT, str(PROGRESS_KEPT))
    register(own)
    return own


def writer_of(pipeline: Pipeline, name: str, sink: Sink, checkpoint: str) -> Writer:
    if isinstance(sink, TopicSink):
        return TopicWriter(topic_sink_options(pipeline, sink), checkpoint)
    if isinstance(sink, LakeSink):
        from kerolox.pipeline.flows.lake_tables import open_lake

        return open_lake(sink, pipeline.name, name)
    return SparkWriter.of(sink)
