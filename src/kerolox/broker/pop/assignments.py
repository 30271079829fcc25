"""Handler of QUERY_ASSIGNMENT: the broker tells a client its queues, and whether it pops or pulls them."""

from __future__ import annotations

from kerolox.access.needs.pop import ASSIGNMENT
from kerolox.broker.members.members import Members
from kerolox.broker.options import BrokerOptions
from kerolox.broker.pop.assignment import is_always_pulled, popped, pulled, queues_of
from kerolox.broker.tables.topics import Topics
from kerolox.client.nameservers import NameServers
from kerolox.clock import Clock
from kerolox.errors import KeroloxError
from kerolox.front.requests import Answer, Request
from kerolox.front.rows import serves
from kerolox.protocol.bodies.body import MessageQueue
from kerolox.protocol.bodies.groups import RequestMode, SetRequestMode
from kerolox.protocol.bodies.heartbeat import MessageModel
from kerolox.protocol.bodies.pop import Assignment, AssignmentAnswer, QueryAssignment
from kerolox.protocol.bodies.routes import TopicRoute
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.flags import PERM_READ
from kerolox.protocol.headers.route import RouteRequest
from kerolox.store.log.cursors import LIGHT_PREFIX
from kerolox.store.tables.request_modes import RequestModes

ROUTE_S = 30.0  # age at which a route is asked for again
ROUTES_MAX = 10_000


class Assignments:
    """Queues of members by their heartbeats at this broker, and routes of the name server. Without a name
    server the topic has this broker's queues."""

    def __init__(
        self,
        options: BrokerOptions,
        topics: Topics,
        members: Members,
        modes: RequestModes,
        nameservers: NameServers | None,
        clock: Clock,
    ) -> None:
        self._options = options
        self._topics = topics
        self._members = members
        self._modes = modes
        self._nameservers = nameservers
        self._clock = clock
        self._routes: dict[str, tuple[float, list[MessageQueue]]] = {}  # with the time of the last attempt

    @serves(RequestCode.QUERY_ASSIGNMENT, None, ASSIGNMENT, lane="client_manager")
    async def query(self, request: Request[None]) -> Answer:
        """Return the queues of a member, and whether it pops or pulls them."""
        asked = QueryAssignment.decode(request.body)
        topic, group = asked.topic or "", asked.consumer_group or ""
        mode = self._mode(topic, group)
        queues = await self._queues(topic)
        given = None if queues is None else self._divide(asked, mode, queues)
        found = None
        if given is not None:
            found = tuple(Assignment(message_queue=queue, mode=mode.mode) for queue in given)
        return Answer(body=AssignmentAnswer(message_queue_assignments=found).encode())

    def _mode(self, topic: str, group: str) -> SetRequestMode:
        mode = self._modes.find(topic, group)
        if mode is not None:
            return mode
        if is_always_pulled(topic):
            return SetRequestMode(topic=topic, consumer_group=group)
        options = self._options
        return SetRequestMode(
            topic=topic, consumer_group=group, mode=RequestMode(options.default_mode.value),
            pop_share_queue_num=options.default_share,
        )  # fmt: skip

    def _divide(
        self, asked: QueryAssignment, mode: SetRequestMode, queues: list[MessageQueue]
    ) -> list[MessageQueue] | None:
        if asked.message_model is MessageModel.BROADCASTING or not self._options.server_balance:
            return queues
        found = self._members.members(asked.consumer_group or "")
        members = [] if found is None else sorted(set(found.client_ids))
        if not members:
            return None
        client_id, strategy = asked.client_id or "", asked.strategy_name or ""
        if mode.mode is RequestMode.PULL:
            return pulled(strategy, client_id, queues, members)
        return popped(strategy, client_id, queues, members, mode.pop_share_queue_num)

    # --- routes ------------------------------------------------------------------------------------------

    async def _queues(self, topic: str) -> list[MessageQueue] | None:
        name = self._options.broker_name
        if topic.startswith(LIGHT_PREFIX):
            return [MessageQueue(topic, name, 0)]
        if self._nameservers is None:
            config = self._topics.find(topic)
            if config is None or not config.perm & PERM_READ:
                return None
            return [MessageQueue(topic, name, queue_id) for queue_id in range(config.read_queue_nums)]
        now_s = self._clock.monotonic_s()
        known = self._routes.get(topic)
        if known is not None and now_s - known[0] < ROUTE_S:
            return known[1]
        try:
            answer = await self._nameservers.ask(
                RequestCode.GET_ROUTEINFO_BY_TOPIC, RouteRequest(topic=topic)
            )
            found = queues_of(topic, TopicRoute.decode(answer.body))
        except KeroloxError:
            return None if known is None else known[1]
        if len(self._routes) >= ROUTES_MAX:
            self._routes.clear()
        self._routes[topic] = (now_s, found)
        return found
