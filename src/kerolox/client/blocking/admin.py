"""The blocking twin of administration; see :mod:`kerolox.client.blocking.producer`.

::

    from kerolox.blocking import Admin

    with Admin("127.0.0.1:9876") as admin:
        admin.create_topic("orders", queues=8)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from kerolox.client.admin import admin
from kerolox.client.admin.part import When
from kerolox.client.admin.results import (
    DeadLetterGroup,
    FoundMessages,
    Group,
    GroupMembers,
    OffsetChange,
    QueueProgress,
    QueueStats,
    ResendResult,
    Rule,
    Topic,
    TopicGroup,
    User,
)
from kerolox.client.admin.users import CUSTOM
from kerolox.client.blocking.producer import Twin
from kerolox.client.messages import Queue, Received
from kerolox.client.options import ClientOptions
from kerolox.protocol.flags import PERM_READ_WRITE


class Admin(Twin[admin.Admin]):
    """Administration of a cluster. See :class:`kerolox.Admin`, whose names these are."""

    def __init__(self, where: ClientOptions | str | Sequence[str] | None = None) -> None:
        super().__init__(lambda: admin.Admin(where))

    @property
    def is_open(self) -> bool:
        return self._thread.call(lambda: self.inner.is_open)

    # --- topics --------------------------------------------------------------------------------------

    def list_topics(self, *, cluster: str | None = None, system: bool = False) -> list[str]:
        return self._thread.run(lambda: self.inner.list_topics(cluster=cluster, system=system))

    def create_topic(
        self,
        topic: str,
        *,
        queues: int = 8,
        read_queues: int | None = None,
        perm: int = PERM_READ_WRITE,
        ordered: bool = False,
        attributes: Mapping[str, str] | None = None,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> Topic:
        return self._thread.run(
            lambda: self.inner.create_topic(
                topic,
                queues=queues,
                read_queues=read_queues,
                perm=perm,
                ordered=ordered,
                attributes=attributes,
                cluster=cluster,
                broker=broker,
            )
        )

    def update_topic(
        self,
        topic: str,
        *,
        queues: int | None = None,
        read_queues: int | None = None,
        perm: int | None = None,
        ordered: bool | None = None,
        attributes: Mapping[str, str | None] | None = None,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> Topic:
        return self._thread.run(
            lambda: self.inner.update_topic(
                topic,
                queues=queues,
                read_queues=read_queues,
                perm=perm,
                ordered=ordered,
                attributes=attributes,
                cluster=cluster,
                broker=broker,
            )
        )

    def delete_topic(self, topic: str, *, cluster: str | None = None) -> list[str]:
        return self._thread.run(lambda: self.inner.delete_topic(topic, cluster=cluster))

    def describe_topic(self, topic: str) -> Topic:
        return self._thread.run(lambda: self.inner.describe_topic(topic))

    def topic_stats(self, topic: str) -> list[QueueStats]:
        return self._thread.run(lambda: self.inner.topic_stats(topic))

    def topic_groups(self, topic: str) -> list[TopicGroup]:
        return self._thread.run(lambda: self.inner.topic_groups(topic))

    # --- groups --------------------------------------------------------------------------------------

    def list_groups(self, *, broker: str | None = None) -> list[Group]:
        return self._thread.run(lambda: self.inner.list_groups(broker=broker))

    def describe_group(self, group: str) -> Group:
        return self._thread.run(lambda: self.inner.describe_group(group))

    def create_group(
        self,
        group: str,
        *,
        retries: int = 16,
        consume: bool = True,
        ordered: bool = False,
        broadcast: bool = True,
        cluster: str | None = None,
    ) -> Group:
        return self._thread.run(
            lambda: self.inner.create_group(
                group, retries=retries, consume=consume, ordered=ordered, broadcast=broadcast, cluster=cluster
            )
        )

    def update_group(
        self,
        group: str,
        *,
        retries: int | None = None,
        consume: bool | None = None,
        ordered: bool | None = None,
        broadcast: bool | None = None,
        cluster: str | None = None,
    ) -> Group:
        return self._thread.run(
            lambda: self.inner.update_group(
                group, retries=retries, consume=consume, ordered=ordered, broadcast=broadcast, cluster=cluster
            )
        )

    def delete_group(
        self, group: str, *, keep_progress: bool = False, cluster: str | None = None
    ) -> list[str]:
        return self._thread.run(
            lambda: self.inner.delete_group(group, keep_progress=keep_progress, cluster=cluster)
        )

    def group_members(self, group: str) -> GroupMembers:
        return self._thread.run(lambda: self.inner.group_members(group))

    def group_lag(self, group: str, topic: str | None = None) -> list[QueueProgress]:
        return self._thread.run(lambda: self.inner.group_lag(group, topic))

    def group_lags(self, topic: str | None = None) -> dict[str, list[QueueProgress]]:
        return self._thread.run(lambda: self.inner.group_lags(topic))

    def group_offsets(self, group: str, topic: str | None = None) -> dict[Queue, int]:
        return self._thread.run(lambda: self.inner.group_offsets(group, topic))

    def set_offsets(self, group: str, offsets: Mapping[Queue, int]) -> list[OffsetChange]:
        return self._thread.run(lambda: self.inner.set_offsets(group, offsets))

    def reset_offsets(
        self, group: str, topic: str, to: str | int | datetime | timedelta, *, preview: bool = False
    ) -> list[OffsetChange]:
        return self._thread.run(lambda: self.inner.reset_offsets(group, topic, to, preview=preview))

    # --- messages ------------------------------------------------------------------------------------

    def find_message(self, id: str, topic: str | None = None) -> Received:
        return self._thread.run(lambda: self.inner.find_message(id, topic))

    def find_messages(
        self, topic: str, *, key: str | None = None, start: When = None, end: When = None, limit: int = 100
    ) -> FoundMessages:
        return self._thread.run(
            lambda: self.inner.find_messages(topic, key=key, start=start, end=end, limit=limit)
        )

    def read_message(self, queue: Queue, offset: int) -> Received:
        return self._thread.run(lambda: self.inner.read_message(queue, offset))

    def list_dead_letters(self) -> list[DeadLetterGroup]:
        return self._thread.run(lambda: self.inner.list_dead_letters())

    def find_dead_letters(
        self,
        group: str,
        *,
        ids: Sequence[str] = (),
        key: str | None = None,
        start: When = None,
        end: When = None,
        limit: int = 100,
    ) -> FoundMessages:
        return self._thread.run(
            lambda: self.inner.find_dead_letters(group, ids=ids, key=key, start=start, end=end, limit=limit)
        )

    def resend_dead_letters(
        self,
        group: str,
        *,
        ids: Sequence[str] = (),
        key: str | None = None,
        start: When = None,
        end: When = None,
        to_topic: str | None = None,
        to_retry: bool = False,
        rate: float = 100.0,
        again: bool = False,
        preview: bool = False,
    ) -> ResendResult:
        return self._thread.run(
            lambda: self.inner.resend_dead_letters(
                group,
                ids=ids,
                key=key,
                start=start,
                end=end,
                to_topic=to_topic,
                to_retry=to_retry,
                rate=rate,
                again=again,
                preview=preview,
            )
        )

    # --- users ---------------------------------------------------------------------------------------

    def list_users(self, part: str = "") -> list[User]:
        return self._thread.run(lambda: self.inner.list_users(part))

    def create_user(self, name: str, password: str, *, super_user: bool = False) -> None:
        return self._thread.run(lambda: self.inner.create_user(name, password, super_user=super_user))

    def update_user(
        self,
        name: str,
        *,
        password: str | None = None,
        super_user: bool | None = None,
        enabled: bool | None = None,
    ) -> None:
        return self._thread.run(
            lambda: self.inner.update_user(name, password=password, super_user=super_user, enabled=enabled)
        )

    def delete_user(self, name: str) -> None:
        return self._thread.run(lambda: self.inner.delete_user(name))

    def list_rules(self, user: str | None = None) -> list[Rule]:
        return self._thread.run(lambda: self.inner.list_rules(user))

    def set_rule(
        self,
        user: str,
        resource: str,
        actions: Sequence[str],
        *,
        allow: bool = True,
        sources: Sequence[str] = (),
        policy: str = CUSTOM,
    ) -> None:
        return self._thread.run(
            lambda: self.inner.set_rule(user, resource, actions, allow=allow, sources=sources, policy=policy)
        )

    def delete_rule(self, user: str, resource: str | None = None, *, policy: str = CUSTOM) -> None:
        return self._thread.run(lambda: self.inner.delete_rule(user, resource, policy=policy))
