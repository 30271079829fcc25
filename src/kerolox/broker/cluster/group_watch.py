"""Whether this broker is the one that acts while no leader of its name lives.

Name servers are told every second that this broker lives, and asked who else of its name does. A follower
acts when it is the lowest of them; twice in a row, and not while it copies from a leader: a name server that
was started again knows the followers before it knows the leader. Whatever one name server says lives, does.

A leader that returns says so before it registers (EXCHANGE_BROKER_HA_INFO): from then on nobody acts until it
leads, or has had its time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping

from kerolox.broker.cluster.group_members import GroupMembers, Members
from kerolox.broker.leadership import Leadership
from kerolox.broker.options import BrokerOptions
from kerolox.broker.tables.topics import Topics
from kerolox.clock import Clock
from kerolox.errors import KeroloxError
from kerolox.net.dialer import Dialer
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.headers.registration import BrokerHeartbeatRequest, DataVersionRequest

log = logging.getLogger(__name__)

ASK_S = 3.0
RETURN_S = 30.0  # a leader that said it returns has so long until it registers


def is_due(own_id: int, own_address: str, members: Mapping[int, str]) -> bool:
    """Whether the broker with this id is the one that acts: it is known, and the lowest."""
    return members.get(own_id) == own_address and own_id == min(members)


class GroupWatch:
    """Watches while the broker runs. ``copying`` tells whether a leader is being copied from; ``changed``
    hears that other brokers of the name live than before."""

    def __init__(
        self,
        leadership: Leadership,
        topics: Topics,
        options: BrokerOptions,
        clock: Clock,
        *,
        nameservers: Iterable[str],
        address: str,
        copying: Callable[[], bool],
        changed: Callable[[], None],
        old: set[str] | None = None,
    ) -> None:
        self.members: Members = {}  # that live, as of the last look
        self.looks = 0  # that were answered
        self._leadership = leadership
        self._topics = topics
        self._options = options
        self._clock = clock
        self._nameservers = list(nameservers)
        self._address = address
        self._copying = copying
        self._changed = changed
        self.dialer = Dialer(clock=clock, tls=options.own_tls, credentials=options.own_credentials)
        self._group = GroupMembers(self.dialer, options, old)
        self._alone = 0  # looks in a row after which this broker would act
        self._not_before_s = 0.0
        self._told = ""  # the last error that kept it from acting
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Watch, for as long as an option needs it."""
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
        await self.dialer.close()

    # --- what others say --------------------------------------------------------------------------------

    def look_now(self) -> None:
        """Look at once: the group has changed, as a name server says, or options have."""
        self._wake.set()

    async def leader_returns(self) -> None:
        """A leader is about to lead: this broker does not act any more when this is over."""
        self._alone = 0
        self._not_before_s = self._clock.monotonic_s() + RETURN_S
        await self._leadership.rest("the leader returns")

    # --- looking ----------------------------------------------------------------------------------------

    async def _run_looks(self) -> None:
        while True:
            if not (self._options.acting or self._options.strict_locks):
                await self._wake.wait()  # for the latter, which may change
                self._wake.clear()
                continue
            try:
                await self.look()
            except Exception:
                log.exception("group_not_watched next='tried again'")
            self._wake.clear()
            timer = self._clock.call_later(self._options.members_ms / 1000, self._wake.set)
            await self._wake.wait()
            timer.cancel()

    async def look(self) -> None:
        """Ask all name servers, and act or not as they say. What none of them can tell stays as it is."""
        answers = await asyncio.gather(*[self._group.ask(server, ASK_S) for server in self._nameservers])
        found: Members = {}
        for answer in answers:
            found |= answer or {}
        if all(answer is None for answer in answers):
            return
        self.looks += 1
        if found != self.members:
            log.info("group_members members=%r", found)
            self.members = found
            self._changed()
        if not self._options.acting or self._leadership.leads:
            return
        if 0 in found:
            self._not_before_s = 0.0  # it has returned: should it go again, nobody waits for it
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
            self._told = ""
        except KeroloxError as error:
            if str(error) != self._told:
                self._told = str(error)
                log.error("broker_cannot_act error=%r next='it is tried again'", self._told)

    # --- being alive ------------------------------------------------------------------------------------

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
                await self.dialer.tell(
                    nameserver, RequestCode.QUERY_DATA_VERSION, version, body, timeout_s=timeout_s
                )
            else:
                alive = BrokerHeartbeatRequest(
                    broker_name=options.broker_name,
                    broker_addr=self._address,
                    cluster_name=options.cluster,
                    broker_id=id,
                )
                await self.dialer.tell(nameserver, RequestCode.BROKER_HEARTBEAT, alive, timeout_s=timeout_s)
        except KeroloxError:
            pass  # registering tells what is wrong with it
