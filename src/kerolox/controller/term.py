"""The time in which this controller leads: the state it decides on, and the commits that change it.

One change after the other: decide, commit, and only then know it and answer. Whoever leads by mistake,
stalled or cut off, finds out at the commit, which then changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from msgspec.structs import replace

from kerolox.clock import Clock
from kerolox.controller.apply import apply
from kerolox.controller.carriers.carrier import NEW, Carrier, Deposed, StoredState
from kerolox.controller.decide import decide
from kerolox.controller.decision import Decision
from kerolox.controller.evidence import Evidence
from kerolox.controller.live import LiveTable
from kerolox.controller.requests import ControllerRequest, DescribeGroups, LastSign
from kerolox.controller.state import ControllerState
from kerolox.errors import KeroloxError

log = logging.getLogger(__name__)


class Term:
    """From when a controller began to lead until another one does."""

    def __init__(
        self, carrier: Carrier, token: int, stored: StoredState, live: LiveTable, clock: Clock
    ) -> None:
        self.token = token
        self._evidence = Evidence(clock)
        self._carrier = carrier
        self._live = live
        self._stored = stored
        self._in_doubt = False  # whether the last commit was carried out
        self._turn = asyncio.Lock()
        signs = live.view(stored.state.groups).signs
        for is_master in (True, False):  # the masters say how far the others have to be
            for name, group in stored.state.groups.items():
                for id, sign in signs.get(name, {}).items():
                    if (id == group.master) is is_master and id in group.replicas:
                        self._evidence.hear(stored.state, group, id, sign)

    @property
    def state(self) -> ControllerState:
        """What is committed."""
        return self._stored.state

    def look(self, request: ControllerRequest) -> Decision:
        """What would be decided now; nothing is changed."""
        live = replace(
            self._live.view(self._groups_of(request)),
            confirmed=self._evidence.confirmed,
            shown=self._evidence.shown,
        )
        return decide(self.state, live, request)

    def heard(self, name: str, id: int, sign: LastSign) -> bool:
        """A broker has spoken. Whether its group has something to learn from it."""
        group = self.state.groups.get(name)
        return group is not None and id in group.replicas and self._evidence.hear(self.state, group, id, sign)

    def _groups_of(self, request: ControllerRequest) -> Iterable[str]:
        if not isinstance(request, DescribeGroups):
            return (request.group,)
        return self.state.groups if request.names is None else request.names

    async def change(self, request: ControllerRequest) -> Decision:
        """Decide, and make it so. Raises Deposed, and other KeroloxErrors when it could not be kept."""
        async with self._turn:
            if self._in_doubt:
                self._stored = await self._carrier.load()
                self._in_doubt = False
            decision = self.look(request)
            if decision.events:
                await self._commit(decision)
            return decision

    async def _commit(self, decision: Decision) -> None:
        state = self.state
        for event in decision.events:
            state = apply(state, event)
        (name,) = {event.group for event in decision.events}
        group = state.groups.get(name)
        revisions = dict(self._stored.revisions)
        self._in_doubt = True
        try:
            revision = await self._carrier.commit(self.token, name, revisions.pop(name, NEW), group)
        except Deposed:
            raise
        except KeroloxError as error:
            log.warning(
                "not_committed group=%r error=%r next='the broker asks again; look at the disk or at etcd'",
                name,
                str(error),
            )
            raise
        if group is not None:
            revisions[name] = revision
        self._stored = StoredState(state, revisions)
        self._in_doubt = False
        self._evidence.committed(state, name, decision.events)
