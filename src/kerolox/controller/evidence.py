"""Broker reports of this controller's term: each group's confirmed offset, and the processes whose log is
known to reach it.

The confirmed offset grows all the time. It is stored with every change of the group, and otherwise every few
seconds, so that the next leading controller starts with a recent value.
"""

from __future__ import annotations

from kerolox.clock import Clock
from kerolox.controller.knowledge import is_news
from kerolox.controller.requests import LastSign
from kerolox.controller.state import (
    ControllerState,
    InSyncChanged,
    MasterChosen,
    ReplicaGroup,
    ReplicasForgotten,
    StateEvent,
)

KEEP_S = 10.0  # interval of storing the confirmed offset of a group,
KEEP_GROUP_S = 0.1  # or this value times the number of groups, if that is longer


class Evidence:
    """Evidence of one term: ``confirmed`` offsets by group, ``shown`` process numbers by replica."""

    def __init__(self, clock: Clock) -> None:
        self.confirmed: dict[str, int] = {}
        self.shown: dict[tuple[str, int], int] = {}
        self._clock = clock
        self._kept_s: dict[str, float] = {}  # time of the last store, by group

    def hear(self, state: ControllerState, group: ReplicaGroup, id: int, sign: LastSign) -> bool:
        """Take over a heartbeat. Return whether something must be stored."""
        key = (group.name, id)
        if id not in group.in_sync:
            self.shown.pop(key, None)
            return is_news(group, sign)
        confirmed = max(group.confirmed, self.confirmed.get(group.name, 0))
        leads = sign.known is not None and sign.known.leads and sign.known.epoch == group.master_epoch
        if leads and id == group.master and sign.kept > confirmed:
            confirmed = self.confirmed[group.name] = sign.kept
        start = group.replicas[id].start
        if start is not None and sign.start == start and sign.max_offset >= confirmed:
            self.shown[key] = start
        return is_news(group, sign) or group.is_doubted or self._is_due(state, group, confirmed)

    def _is_due(self, state: ControllerState, group: ReplicaGroup, confirmed: int) -> bool:
        now_s = self._clock.monotonic_s()
        kept_s = self._kept_s.setdefault(group.name, now_s)
        pause_s = max(KEEP_S, KEEP_GROUP_S * len(state.groups))
        return confirmed > group.confirmed and now_s - kept_s >= pause_s

    def committed(self, state: ControllerState, name: str, events: tuple[StateEvent, ...]) -> None:
        """Take over a committed change of a group. An elected broker has all confirmed bytes, and leaders add
        only complete replicas to the in-sync set."""
        group = state.groups.get(name)
        self._kept_s[name] = self._clock.monotonic_s()
        for event in events:
            match event:
                case MasterChosen(id=int(id), lost=lost):
                    self._show(group, frozenset({id}))
                    if lost:
                        self.confirmed.pop(name, None)
                case InSyncChanged(in_sync=in_sync):
                    self._show(group, in_sync)
                case ReplicasForgotten():
                    known = set() if group is None else group.replicas.keys()
                    self.shown = {k: v for k, v in self.shown.items() if k[0] != name or k[1] in known}
        if group is None:
            self.confirmed.pop(name, None)
            self._kept_s.pop(name, None)

    def _show(self, group: ReplicaGroup | None, ids: frozenset[int]) -> None:
        for id in ids if group is not None else ():
            replica = group.replicas.get(id) if group is not None else None
            if replica is not None and replica.start is not None and group is not None:
                self.shown[group.name, id] = replica.start
