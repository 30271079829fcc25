"""Client for the tables of another broker of this name.

All requests go to the port that clients use. RocketMQ's followers request topics and the timer two ports
below it, which firewalls may block.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from kerolox.access.book import Book, rules_of, users_of
from kerolox.errors import KeroloxError, RequestFailed
from kerolox.net.dialer import Dialer
from kerolox.protocol.bodies import access as bodies
from kerolox.protocol.bodies.body import decode_list
from kerolox.protocol.bodies.groups import GroupConfig, GroupConfigTable, RequestModeTable
from kerolox.protocol.bodies.offsets import ConsumerOffsetTable, DelayOffsetTable
from kerolox.protocol.bodies.stats import TimerMetrics
from kerolox.protocol.bodies.table_news import TableNews
from kerolox.protocol.bodies.topics import AllTopics, DataVersion, TopicConfig, TopicConfigTable
from kerolox.protocol.codes import RequestCode, request_name
from kerolox.protocol.header import Header
from kerolox.protocol.headers.auth import ListAclsRequest, ListUsersRequest
from kerolox.protocol.headers.group import AllGroupConfigAnswer, AllGroupConfigRequest
from kerolox.protocol.headers.replication import WatchTablesRequest
from kerolox.protocol.headers.topic import AllTopicConfigAnswer, AllTopicConfigRequest

T = TypeVar("T")
Paged = TypeVar("Paged", AllTopics, GroupConfigTable)

PAGE = 2000  # entries of one answer
PAGE_TIMEOUT_S = 30.0
TIMEOUT_S = 3.0
HOLD_S = 5.0  # the leader holds a request for news this long
ENTRIES_MAX = 1_000_000  # limit of a table that is read in pages
STARTS_MAX = 5  # attempts to read a table that changes between its pages


class TableNotTold(KeroloxError):
    """A table of a broker that cannot be fetched."""

    retriable = True


class RemoteTables:
    """Requests for the tables of one broker. Every method raises a KeroloxError if the broker does not
    answer, or answers with an error."""

    def __init__(self, dialer: Dialer, address: str) -> None:
        self.address = address
        self._dialer = dialer

    async def topics(self) -> AllTopics:
        async def page(first: int, version: str | None) -> tuple[AllTopics, int, int | None]:
            asked = AllTopicConfigRequest(topic_seq=first, max_topic_num=PAGE, data_version=version)
            answer = await self._ask(RequestCode.GET_ALL_TOPIC_CONFIG, asked, PAGE_TIMEOUT_S)
            table = await asyncio.to_thread(AllTopics.decode, answer.body)
            total = answer.header(AllTopicConfigAnswer).total_topic_num
            return table, len(table.topic_config_table), total

        pages = await self._pages("topics", page)
        found: dict[str, TopicConfig] = {}
        for table in pages:
            found |= table.topic_config_table
        return AllTopics(
            data_version=pages[0].data_version,
            kerolox_deleted=pages[0].kerolox_deleted,
            topic_config_table=found,
        )

    async def topics_version(self) -> DataVersion:
        """Return only the version; requests one topic. A broker without pages answers with all topics."""
        asked = AllTopicConfigRequest(topic_seq=0, max_topic_num=1)
        answer = await self._ask(RequestCode.GET_ALL_TOPIC_CONFIG, asked)
        return (await asyncio.to_thread(TopicConfigTable.decode, answer.body)).data_version

    async def groups_version(self) -> DataVersion:
        asked = AllGroupConfigRequest(group_seq=0, max_group_num=1)
        answer = await self._ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, asked)
        return (await asyncio.to_thread(GroupConfigTable.decode, answer.body)).data_version

    async def groups(self) -> GroupConfigTable:
        async def page(first: int, version: str | None) -> tuple[GroupConfigTable, int, int | None]:
            asked = AllGroupConfigRequest(group_seq=first, max_group_num=PAGE, data_version=version)
            answer = await self._ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, asked, PAGE_TIMEOUT_S)
            table = await asyncio.to_thread(GroupConfigTable.decode, answer.body)
            total = answer.header(AllGroupConfigAnswer).total_group_num
            return table, len(table.subscription_group_table), total

        pages = await self._pages("groups", page)
        found: dict[str, GroupConfig] = {}
        forbidden: dict[str, dict[str, int]] = {}
        for table in pages:
            found |= table.subscription_group_table
            forbidden |= table.forbidden_table
        return GroupConfigTable(
            data_version=pages[0].data_version, forbidden_table=forbidden, subscription_group_table=found
        )

    async def offsets(self) -> ConsumerOffsetTable:
        return await self._table(RequestCode.GET_ALL_CONSUMER_OFFSET, ConsumerOffsetTable.decode)

    async def delay_offsets(self) -> DelayOffsetTable:
        return await self._table(RequestCode.GET_ALL_DELAY_OFFSET, DelayOffsetTable.decode)

    async def request_modes(self) -> RequestModeTable:
        return await self._table(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, RequestModeTable.decode)

    async def timer_metrics(self) -> TimerMetrics:
        return await self._table(RequestCode.GET_TIMER_METRICS, TimerMetrics.decode)

    async def timer_checkpoint(self) -> bytes:
        body: bytes = (await self._ask(RequestCode.GET_TIMER_CHECK_POINT)).body
        return body

    async def news(self, broker_id: int, address: str, life: str, serial: int) -> TableNews:
        """Return the changes since ``serial``. The answer comes at the next change, or after ``HOLD_S``."""
        asked = WatchTablesRequest(
            broker_id=broker_id,
            broker_address=address,
            life=life,
            serial=serial,
            hold_millis=int(HOLD_S * 1000),
        )
        answer = await self._ask(RequestCode.WATCH_TABLES, asked, HOLD_S + TIMEOUT_S)
        return TableNews.decode(answer.body)

    async def access(self) -> Book:
        """Return the users, with their passwords, and the policies. The broker shows them to super users
        only."""
        users = (await self._ask(RequestCode.AUTH_LIST_USER, ListUsersRequest())).body
        found = decode_list(users, bodies.User) if users else []
        if not found or any(user.password is None for user in found):
            raise TableNotTold(
                f"{self.address} does not show its users: innerClientAuthenticationCredentials must name a "
                "Super user of that broker, and authenticationEnabled must be true there"
            )
        rules = (await self._ask(RequestCode.AUTH_LIST_ACL, ListAclsRequest())).body
        book = Book()
        book.replace(users_of(found), rules_of(decode_list(rules, bodies.Acl) if rules else []))
        return book

    async def _table(self, code: RequestCode, decode: Callable[[bytes], T]) -> T:
        answer = await self._ask(code)
        return await asyncio.to_thread(decode, answer.body)  # the body may be large

    async def _pages(
        self, what: str, page: Callable[[int, str | None], Awaitable[tuple[Paged, int, int | None]]]
    ) -> list[Paged]:
        """Return all pages of one version. A broker without pages answers with everything, and no total."""
        for _ in range(STARTS_MAX):
            pages: list[Paged] = []
            version: DataVersion | None = None
            count = 0
            while count <= ENTRIES_MAX:
                table, more, total = await page(count, None if version is None else version.encode().decode())
                if version is not None and table.data_version != version:
                    break  # the table has changed meanwhile
                version = table.data_version
                pages.append(table)
                count += more
                if total is None or count >= total or not more:
                    return pages
            else:
                raise TableNotTold(
                    f"{self.address} has more {what} than the limit of {ENTRIES_MAX} (ENTRIES_MAX): they are "
                    "not copied"
                )
        raise TableNotTold(
            f"{what} of {self.address} changed {STARTS_MAX} times during the copy; it is repeated soon"
        )

    async def _ask(
        self, code: RequestCode, header: Header | None = None, timeout_s: float = TIMEOUT_S
    ) -> Any:
        answer = await self._dialer.call(self.address, code, header, timeout_s=timeout_s)
        if answer.code != 0:
            raise RequestFailed(answer.code, answer.remark, address=self.address, request=request_name(code))
        return answer
