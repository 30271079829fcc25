"""Metrics exporter. Counters used only by it are connected only when it is switched on."""

from __future__ import annotations

from collections.abc import Iterable

from kerolox.access.metrics_server import metrics_server
from kerolox.broker.base import Base
from kerolox.broker.figures.meters import DELAY, NORMAL, TRANSACTION, Meters
from kerolox.broker.figures.room import Figures
from kerolox.broker.later.room import Scheduling
from kerolox.broker.produce.room import Producing
from kerolox.broker.remoting.room import Remoting
from kerolox.broker.tables.room import Tables
from kerolox.broker.transactions.transactions import Transactions
from kerolox.front.handlers import Handlers
from kerolox.metric_text import MetricsExporter
from kerolox.net.http_server import HttpServer


def exporter_of(
    base: Base,
    tables: Tables,
    figures: Figures,
    later: Scheduling,
    transactions: Transactions,
    producing: Producing,
    remoting: Remoting,
    handlers: Iterable[Handlers],
) -> HttpServer | None:
    """Return the HTTP responder for scrapers and probes. None when the exporter is switched off; then nothing
    is counted for it."""
    options = base.options
    if options.metrics_exporter is not MetricsExporter.PROM:
        return None
    meters = Meters(base.clock, tables.topics.is_system)
    for table in handlers:
        table.answered = meters.answered
    producing.sends.meter = meters.sent
    remoting.send_runs.meters = meters
    producing.replies.on_stored.append(lambda topic, count, size: meters.stored(topic, NORMAL, count, size))
    transactions.endings.on_stored.append(
        lambda topic, count, size, _: meters.stored(topic, TRANSACTION, count, size)
    )
    later.timers.delivery.on_stored.append(
        lambda topic, count, size, _: meters.stored(topic, DELAY, count, size)
    )
    later.delays.on_delivered.append(lambda _, topic, size, count: meters.stored(topic, DELAY, count, size))
    later.timers.on_entered.append(meters.timed)
    tables.topics.on_removed.append(meters.forget_topic)
    figures.metrics.more.append(meters.metrics)
    return metrics_server(options, figures.metrics.pages(), base.guard, base.clock)
