"""Decision whether this broker acts for the leader while no leader of its name is alive.

The broker sends a heartbeat to the name servers every second, and asks them for the live brokers of its name.
A follower acts if it has the lowest id of them twice in a row and copies from no leader: a restarted name
server knows the followers before it knows the leader. A broker that one name server reports as alive counts
as alive.

A leader that returns announces it before it registers (EXCHANGE_BROKER_HA_INFO). From then on no follower
acts until the leader leads, or its time is over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from kerolox.broker.base import Base
from kerolox.broker.nameservers.group_members import GroupMembers, Members
from kerolox.broker.tables.topics import Topics
from kerolox.errors import KeroloxError
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.headers.registration import BrokerHeartbeatRequest, DataVersionRequest

log = logging.getLogger(__name__)

RETURN_S = 30.0  # time for an announced leader to register


def is_due(own_id: int, own_address: str, members: Mapping[int, str]) -> bool:
    """True if the broker with this id must act: it is registered, and has the lowest id."""
    return members.get(own_id) == own_address and own_id == min(members)


class GroupWatch:
    """Watch of the brokers of this name. ``copying`` returns whether this broker copies from a leader;
    ``changed`` is called when the live brokers of the name have changed."""

    def __init__(
        self,
        base: Base,
        topics: Topics,
        group: GroupMembers,
        *,
        copying: Callable[[], bool],
        changed: Callable[[], None],
    ) -> None:
        self.members: Members = {}  # live brokers at the last look
        self.looks = 0  # answered looks since the start
        self._leadership = base.leadership
        self._topics = topics
        self._options = base.options
        self._clock = base.clock
        self._group = group
        self._nameservers = group.nameservers
        self._address = base.endpoints.address
        self._copying = copying
        self._changed = changed
        self._dialer = base.dialer
        self._alone = 0  # consecutive looks after which this broker should act
        self._not_before_s = 0.0
        self._reported = ""  # the last error that kept it from acting
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start watching. Without options that need it, the watch sleeps."""
        if not self._nameservers:
            return
        loop = asyncio.get_running_loop()
        if self._options.acting:
            self._tasks.append(loop.create_task(self._run_alive()))
        self._tasks.append(loop.create_task(self._run_looks()))

    async def close(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- notices ----------------------------------------------------------------------------------------

    def look_now(self) -> None:
        """Look at once: a name server reported a change of the group, or options have changed."""
        self._wake.set()

    async def leader_returns(self) -> None:
        """Stop acting because a leader is about to lead. Returns when acting has ended."""
        self._alone = 0
        self._not_before_s = self._clock.monotonic_s() + RETURN_S
        await self._leadership.rest("the leader returns")

    # --- looking ----------------------------------------------------------------------------------------

    async def _run_looks(self) -> None:
        while True:
            if not (self._options.acting or self._options.strict_locks):
                await self._wake.wait()  # strict_locks may change at run time
                self._wake.clear()
                continue
            try:
                await self.look()
            except Exception:
                log.exception("group_not_watched next='retried at the next look'")
            self._wake.clear()
            timer = self._clock.call_later(self._options.members_ms / 1000, self._wake.set)
            await self._wake.wait()
            timer.cancel()

    async def look(self) -> None:
        """Ask all name servers, then act or stop acting. If no name server answers, nothing changes."""
        answers = await self._group.ask_all()
        if not answers:
            return
        found: Members = {}
        for answer in answers:
            found |= answer
        self.looks += 1
        if found != self.members:
            log.info("group_members members=%r", found)
            self.members = found
            self._changed()
        if not self._options.acting or self._leadership.leads:
            return
        if 0 in found:
            self._not_before_s = 0.0  # the leader has returned; if it goes again, there is no further wait
        if 0 in found or self._copying() or not is_due(self._leadership.id, self._address, found):
            self._alone = 0
            if self._leadership.acts:
                await self._leadership.rest(f"these brokers of its name live: {found!r}")
            return
        self._alone += 1
        if self._alone > 1 and self._clock.monotonic_s() >= self._not_before_s:
            await self._act()

    async def _act(self) -> None:
        try:
            await self._leadership.act()
            self._reported = ""
        except KeroloxError as error:
            if str(error) != self._reported:
                self._reported = str(error)
                log.error("broker_cannot_act error=%r next='retried at the next look'", self._reported)

    # --- heartbeats -------------------------------------------------------------------------------------

    async def _run_alive(self) -> None:
        while True:
            await self._clock.sleep(self._options.alive_ms / 1000)
            await asyncio.gather(*[self._say_alive(server) for server in self._nameservers])

    async def _say_alive(self, nameserver: str) -> None:
        options, id = self._options, self._leadership.id
        timeout_s = options.alive_timeout_ms / 1000
        try:
            if options.old_nameservers:
                version = DataVersionRequest(
                    broker_name=options.broker_name,
                    broker_addr=self._address,
                    cluster_name=options.cluster,
                    broker_id=id,
                )
                body = self._topics.table.version.encode()
                await self._dialer.tell(
                    nameserver, RequestCode.QUERY_DATA_VERSION, version, body, timeout_s=timeout_s
                )
            else:
                alive = BrokerHeartbeatRequest(
                    broker_name=options.broker_name,
                    broker_addr=self._address,
                    cluster_name=options.cluster,
                    broker_id=id,
                )
                await self._dialer.tell(nameserver, RequestCode.BROKER_HEARTBEAT, alive, timeout_s=timeout_s)
        except KeroloxError:
            pass  # the registration reports the failure
