"""One term of leadership: the state that decisions are based on, and the commits that change it.

Changes are serialized: decide, commit, and only then update the state and answer. A controller that leads
only in its own view, because it was stalled or partitioned, fails at the commit, which changes nothing.
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
    """The time from the start of this controller's leadership until another controller leads."""

    def __init__(
        self, carrier: Carrier, token: int, stored: StoredState, live: LiveTable, clock: Clock
    ) -> None:
        self.token = token
        self._evidence = Evidence(clock)
        self._carrier = carrier
        self._live = live
        self._stored = stored
        self._in_doubt = False  # true while the result of the last commit is unknown
        self._turn = asyncio.Lock()
        signs = live.view(stored.state.groups).signs
        # masters first: their reports set the offset that the others must reach
        for is_master in (True, False):
            for name, group in stored.state.groups.items():
                for id, sign in signs.get(name, {}).items():
                    if (id == group.master) is is_master and id in group.replicas:
                        self._evidence.hear(stored.state, group, id, sign)

    @property
    def state(self) -> ControllerState:
        """The committed state."""
        return self._stored.state

    def look(self, request: ControllerRequest) -> Decision:
        """Return the decision for a request without changing anything."""
        live = replace(
            self._live.view(self._groups_of(request)),
            confirmed=self._evidence.confirmed,
            shown=self._evidence.shown,
        )
        return decide(self.state, live, request)

    def heard(self, name: str, id: int, sign: LastSign) -> bool:
        """Take over a heartbeat. Return whether the group must store something from it."""
        group = self.state.groups.get(name)
        return group is not None and id in group.replicas and self._evidence.hear(self.state, group, id, sign)

    def _groups_of(self, request: ControllerRequest) -> Iterable[str]:
        if not isinstance(request, DescribeGroups):
            return (request.group,)
        return self.state.groups if request.names is None else request.names

    async def change(self, request: ControllerRequest) -> Decision:
        """Decide and commit. Raises Deposed, and another KeroloxError if the change could not be stored."""
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
                "not_committed group=%r error=%r next='the broker retries; check the disk or etcd'",
                name,
                str(error),
            )
            raise
        if group is not None:
            revisions[name] = revision
        self._stored = StoredState(state, revisions)
        self._in_doubt = False
        self._evidence.committed(state, name, decision.events)
