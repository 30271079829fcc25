"""Members of groups, and the queues they lock."""

from __future__ import annotations

from kerolox.protocol.bodies.body import Body, MessageQueue
from kerolox.protocol.bodies.heartbeat import SubscriptionData
from kerolox.protocol.header import wire


class LockRequest(Body, frozen=True, kw_only=True):
    """Body of LOCK_BATCH_MQ and UNLOCK_BATCH_MQ."""

    client_id: str | None = None
    consumer_group: str | None = None
    mq_set: frozenset[MessageQueue] = frozenset()
    only_this_broker: bool = False


class BoundLockRequest(LockRequest, frozen=True, kw_only=True):
    """LockRequest of our clients, which give the locks up with their connection."""

    until_disconnected: bool = False


class LockAnswer(Body, frozen=True, kw_only=True, rename=wire(lock_ok_mq_set="lockOKMQSet")):
    """The queues that are locked now."""

    lock_ok_mq_set: frozenset[MessageQueue] = frozenset()


class ConsumerIds(Body, frozen=True, kw_only=True):
    """Answer to GET_CONSUMER_LIST_BY_GROUP."""

    consumer_id_list: tuple[str, ...] = ()


class GroupList(Body, frozen=True, kw_only=True):
    """Answer to QUERY_TOPIC_CONSUME_BY_WHO."""

    group_list: tuple[str, ...] = ()


class GroupSubscription(Body, frozen=True, kw_only=True):
    """Answer to QUERY_SUBSCRIPTION_BY_CONSUMER."""

    group: str | None = None
    subscription_data: SubscriptionData | None = None
    topic: str | None = None
