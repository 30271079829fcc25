"""The exporter of metrics. What only it needs is counted only where it is switched on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kerolox.broker.figures.http import HttpResponder
from kerolox.broker.figures.meters import DELAY, NORMAL, TRANSACTION, Meters
from kerolox.broker.options import MetricsExporter
from kerolox.net.requests import Handlers

LOOPBACK = "127.0.0.1"

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kerolox.broker.broker import Broker


def exporter(broker: Broker, handlers: Iterable[Handlers]) -> HttpResponder | None:
    """Where scrapers and probes ask; None when it is switched off, and then nothing is counted for it."""
    options = broker.options
    if options.metrics_exporter is not MetricsExporter.PROM:
        return None
    meters = Meters(broker.clock, broker.topics.is_system)
    for table in handlers:
        table.answered = meters.answered
    broker.sends.meter = meters.sent
    broker.send_runs.meters = meters
    broker.replies.on_stored.append(lambda topic, count, size: meters.stored(topic, NORMAL, count, size))
    broker.transactions.endings.on_stored.append(
        lambda topic, count, size, _: meters.stored(topic, TRANSACTION, count, size)
    )
    broker.timers.delivery.on_stored.append(
        lambda topic, count, size, _: meters.stored(topic, DELAY, count, size)
    )
    broker.delays.on_delivered.append(lambda _, topic, size, count: meters.stored(topic, DELAY, count, size))
    broker.timers.on_entered.append(meters.timed)
    broker.topics.on_removed.append(meters.forget_topic)
    broker.metrics.more.append(meters.metrics)
    host = options.metrics_host or LOOPBACK
    return HttpResponder(broker.metrics.pages(), host=host, port=options.metrics_port)
