"""Live brokers of this broker's name, as a name server reports them.

Name servers since RocketMQ 5 answer that request. With older ones, every broker registers a topic by which
the brokers of its name find each other; the route of that topic has their addresses. RocketMQ 4.9's never
answer an unknown request, so the wait is limited to ``ANSWER_S``.
"""

from __future__ import annotations

import asyncio
import logging

from kerolox.broker.options import BrokerOptions
from kerolox.errors import KeroloxError, RequestTimeout
from kerolox.net.dialer import Dialer
from kerolox.protocol.bodies.routes import BrokerMemberGroupAnswer, TopicRoute
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.headers.registration import BrokerMemberGroupRequest
from kerolox.protocol.headers.route import RouteRequest
from kerolox.protocol.reserved import MEMBER_TOPIC_PREFIX

log = logging.getLogger(__name__)

ASK_S = 3.0
ANSWER_S = 1.0  # a name server that supports the request answers sooner

Members = dict[int, str]  # id → address


def split_nameservers(text: str) -> list[str]:
    """Split ``a:1;b:2`` into unique addresses. A scheme, as some environments add it, is removed."""
    parts = (part.strip().removeprefix("http://").rstrip("/") for part in text.replace(",", ";").split(";"))
    return list(dict.fromkeys(part for part in parts if part))


class GroupMembers:
    """Queries of name servers for the brokers of this broker's name."""

    def __init__(self, dialer: Dialer, options: BrokerOptions) -> None:
        self.nameservers = split_nameservers(options.nameservers)
        self._dialer = dialer
        self._options = options
        self._old: set[str] = set()  # name servers that support only routes

    async def ask_all(self) -> list[Members]:
        """Return the answers of the name servers that can report the live brokers."""
        answers = await asyncio.gather(*[self.ask(server, ASK_S) for server in self.nameservers])
        return [answer for answer in answers if answer is not None]

    async def ask(self, nameserver: str, timeout_s: float) -> Members | None:
        """Return the live brokers. None if the name server cannot report them."""
        try:
            if nameserver not in self._old:
                found = await self._group(nameserver, min(timeout_s, ANSWER_S))
                if found is not None or not self._options.old_nameservers:
                    return found
                by_route = await self._by_route(nameserver, timeout_s)
                if nameserver not in self._old:
                    log.info(
                        "nameserver_is_old nameserver=%s reason='it does not know GET_BROKER_MEMBER_GROUP "
                        "(901)' next='the brokers of this name are found by the route of %s%s'",
                        nameserver, MEMBER_TOPIC_PREFIX, self._options.broker_name,
                    )  # fmt: skip
                self._old.add(nameserver)
                return by_route
            return await self._by_route(nameserver, timeout_s)
        except KeroloxError:
            self._old.discard(nameserver)  # another version may start there
            return None

    async def _group(self, nameserver: str, timeout_s: float) -> Members | None:
        name = self._options.broker_name
        asked = BrokerMemberGroupRequest(cluster_name=self._options.cluster, broker_name=name)
        try:
            answer = await self._dialer.call(
                nameserver, RequestCode.GET_BROKER_MEMBER_GROUP, asked, timeout_s=timeout_s
            )
        except RequestTimeout:
            return None
        if answer.code != 0 or not answer.body:
            return None
        group = BrokerMemberGroupAnswer.decode(answer.body).broker_member_group
        return {} if group is None else dict(group.broker_addrs)

    async def _by_route(self, nameserver: str, timeout_s: float) -> Members | None:
        name = self._options.broker_name
        asked = RouteRequest(topic=MEMBER_TOPIC_PREFIX + name, standard_json_only=True)
        answer = await self._dialer.call(
            nameserver, RequestCode.GET_ROUTEINFO_BY_TOPIC, asked, timeout_s=timeout_s
        )
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return {}
        if answer.code != 0:
            return None
        for broker in TopicRoute.decode(answer.body).broker_datas:
            if broker.broker_name == name:
                return dict(broker.broker_addrs)
        return {}
