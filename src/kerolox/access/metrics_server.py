"""Metrics port of a server: its options, and the HTTP server with the pages."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from kerolox.access.guard import Guard
from kerolox.access.needs.kinds import LOOKS
from kerolox.access.server_options import ServerOptions
from kerolox.clock import Clock
from kerolox.errors import OptionError
from kerolox.metric_text import LOOPBACK, MetricsExporter
from kerolox.net.http_pages import Pages
from kerolox.net.http_server import HttpServer
from kerolox.net.tls import TlsMode
from kerolox.options import option


@dataclass
class MetricsOptions(ServerOptions):
    """Options of a server with metrics."""

    metrics_exporter: MetricsExporter = option(
        MetricsExporter.DISABLE, "PROM: serve metrics for Prometheus at /metrics, and /healthz.",
        key="metricsExporterType",
    )  # fmt: skip
    metrics_port: int = option(
        5557, "Port of the metrics. Port 0 picks a free port.",
        key="metricsPromExporterPort", low=0, high=65535,
    )  # fmt: skip
    metrics_host: str = option(
        LOOPBACK, "Listen address of the metrics; 0.0.0.0: every address.", key="metricsPromExporterHost"
    )
    metrics_labels: str = option(
        "", "Labels of all metrics, for example instance:a,zone:b.", key="metricsLabel"
    )
    metrics_users: bool = option(
        False, "Require a user with the right Get on the cluster for /metrics (HTTP basic authentication), "
        "and TLS as on the other ports. If false, /metrics is open, with or without TLS.",
        key="metricsAuthenticationEnabled",
    )  # fmt: skip

    def check_metrics(self) -> None:
        """Reject settings that would have no effect. Called at the start."""
        if self.metrics_users and not self.asks_who:
            raise OptionError(
                "metricsAuthenticationEnabled", True, "authenticationEnabled=true as well: there are no users"
            )


def metrics_server(options: MetricsOptions, pages: Pages, guard: Guard, clock: Clock) -> HttpServer:
    """Return the server of the metrics port. /healthz is open: probes of container platforms have no user."""
    options.check_metrics()
    tls = options.tls
    if not options.metrics_users and tls.mode is TlsMode.ENFORCING:
        tls = msgspec.structs.replace(tls, mode=TlsMode.PERMISSIVE)
    return HttpServer(
        pages,
        host=options.metrics_host or LOOPBACK,
        port=options.metrics_port,
        tls=tls,
        guard=guard,
        rules={"/metrics": LOOKS} if options.metrics_users else {},
        clock=clock,
    )
