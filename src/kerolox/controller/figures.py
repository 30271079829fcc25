"""Controller metrics for Prometheus, with RocketMQ's names and labels, and the health page.

Metrics that RocketMQ does not have begin with ``kerolox_``. They are served only if the exporter is on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol

from kerolox.clock import Clock
from kerolox.controller.decision import Decision
from kerolox.controller.live import LiveTable
from kerolox.controller.options import ControllerOptions
from kerolox.controller.requests import ControllerRequest, Elect
from kerolox.controller.state import MasterChosen, ReplicaGroup
from kerolox.front.requests import Answer, Request
from kerolox.histogram import Histogram
from kerolox.metric_text import CONTENT_TYPE, MetricText, own_labels
from kerolox.net.http_pages import Page
from kerolox.protocol.codes import RequestCode, ResponseCode

# RocketMQ's histogram bounds and role numbers.
LATENCY_US: Final = (*(step * 10**power for power in range(7) for step in (1, 3, 5)), 10**7)
FOLLOWER, LEADER = 2, 3

# RocketMQ's names of request types; any other code counts as OTHER.
_TYPES: Final[Mapping[int, str]] = {
    RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET: "CONTROLLER_ALTER_SYNC_STATE_SET",
    RequestCode.CONTROLLER_ELECT_MASTER: "CONTROLLER_ELECT_MASTER",
    RequestCode.CONTROLLER_REGISTER_BROKER: "CONTROLLER_REGISTER_BROKER",
    RequestCode.CONTROLLER_GET_REPLICA_INFO: "CONTROLLER_GET_REPLICA_INFO",
    RequestCode.CONTROLLER_GET_METADATA_INFO: "CONTROLLER_GET_METADATA_INFO",
    RequestCode.CONTROLLER_GET_SYNC_STATE_DATA: "CONTROLLER_GET_SYNC_STATE_DATA",
    RequestCode.BROKER_HEARTBEAT: "CONTROLLER_BROKER_HEARTBEAT",
    RequestCode.UPDATE_CONTROLLER_CONFIG: "CONTROLLER_UPDATE_CONTROLLER_CONFIG",
    RequestCode.GET_CONTROLLER_CONFIG: "CONTROLLER_GET_CONTROLLER_CONFIG",
    RequestCode.CLEAN_BROKER_DATA: "CONTROLLER_CLEAN_BROKER_DATA",
    RequestCode.CONTROLLER_GET_NEXT_BROKER_ID: "CONTROLLER_GET_NEXT_BROKER_ID",
    RequestCode.CONTROLLER_APPLY_BROKER_ID: "CONTROLLER_APPLY_BROKER_ID",
}


class Place(Protocol):
    """The controller's properties that metrics need."""

    @property
    def advertised(self) -> str: ...

    @property
    def is_leader(self) -> bool: ...

    @property
    def groups(self) -> Mapping[str, ReplicaGroup]: ...


class ControllerFigures:
    """The pages ``/metrics`` and ``/healthz`` of one controller."""

    def __init__(self, place: Place, live: LiveTable, options: ControllerOptions, clock: Clock) -> None:
        self._place = place
        self._live = live
        self._options = options
        self._clock = clock
        self._own_labels = own_labels(options.metrics_labels)
        self._calls: dict[tuple[str, str], Histogram] = {}  # by type and result
        self._elections: dict[tuple[str, str], dict[str, int]] = {}  # by cluster and group, then by result

    def pages(self) -> dict[str, Callable[[], Awaitable[Page]]]:
        return {"/metrics": self.metrics, "/healthz": self.health}

    def answered(self, request: Request[Any], answer: Answer) -> None:
        """Count a request that was answered, or processed if it is one-way."""
        status = "success" if answer.code == ResponseCode.SUCCESS else "failed"
        key = (_TYPES.get(request.code, "OTHER"), status)
        found = self._calls.get(key)
        if found is None:
            found = self._calls[key] = Histogram(LATENCY_US)
        found.add((self._clock.monotonic_s() - request.received_s) * 1e6)

    def decided(self, request: ControllerRequest, decision: Decision) -> None:
        """Count an election by its result."""
        group = self._place.groups.get(request.group) if isinstance(request, Elect) else None
        if group is None:
            return
        if decision.answer.code == ResponseCode.CONTROLLER_MASTER_STILL_EXIST:
            result = "keep_current_master"
        elif any(isinstance(event, MasterChosen) and event.id is not None for event in decision.events):
            result = "new_master_elected"
        else:
            result = "no_master_elected"
        counts = self._elections.setdefault((group.cluster, group.name), {})
        counts[result] = counts.get(result, 0) + 1

    async def health(self) -> Page:
        return Page("ok\nleader\n" if self._place.is_leader else "ok\n")

    async def metrics(self) -> Page:
        out = MetricText(
            {
                "address": self._place.advertised,
                "group": self._options.group,
                "peer_id": self._options.self_id,
                "otel_scope_name": "controller",
                **self._own_labels,
            }
        )
        self._requests(out)
        self._groups(out)
        return Page(await asyncio.to_thread(out.text), content_type=CONTENT_TYPE)

    def _requests(self, out: MetricText) -> None:
        out.gauge("role", "2 follower, 3 leader", LEADER if self._place.is_leader else FOLLOWER)
        calls = [
            ({"request_type": kind, "request_handle_status": status}, one)
            for (kind, status), one in self._calls.items()
        ]
        out.metric("request_total", "counter", "Requests", [(labels, one.count) for labels, one in calls])
        out.histogram("request_latency_microseconds", "How long requests took", calls)

    def _groups(self, out: MetricText) -> None:
        groups = self._place.groups
        living = self._live.counts()
        out.metric(
            "active_broker_num", "gauge", "Brokers that live",
            [
                ({"cluster": groups[name].cluster if name in groups else "", "broker_set": name}, count)
                for name, count in living.items()
            ],
        )  # fmt: skip
        # Counts of removed groups are dropped, so that names do not accumulate.
        if self._place.is_leader:
            self._elections = {key: found for key, found in self._elections.items() if key[1] in groups}
        out.metric(
            "election_total", "counter", "Elections, by how they ended",
            [
                ({"cluster": cluster, "broker_set": name, "election_result": result}, count)
                for (cluster, name), found in self._elections.items()
                for result, count in found.items()
            ],
        )  # fmt: skip
        labels = {name: {"cluster": group.cluster, "broker_set": name} for name, group in groups.items()}
        for name, about, value in (
            ("kerolox_controller_master_epoch", "Epoch of the master", lambda one: one.master_epoch),
            ("kerolox_controller_has_master", "1 with a master", lambda one: one.master is not None),
            ("kerolox_controller_in_sync_replicas", "Replicas in sync", lambda one: len(one.in_sync)),
            ("kerolox_controller_replicas", "Replicas that have an id", lambda one: len(one.replicas)),
        ):
            out.metric(name, "gauge", about, [(labels[each], value(one)) for each, one in groups.items()])
