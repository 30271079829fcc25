"""The client without await. See :mod:`kerolox.client.blocking.producer`."""

from __future__ import annotations

from kerolox.client.blocking.consumers import PullConsumer, PushConsumer
from kerolox.client.blocking.producer import Client, Producer, Transaction
from kerolox.client.consume.consumer_options import PullOptions, PushOptions
from kerolox.client.consume.outcomes import DeadLetter, Retry, Suspend
from kerolox.client.consume.pull_consumer import Batch
from kerolox.client.consume.push_consumer import ConsumeHook
from kerolox.client.errors import (
    AccessDenied,
    AfterFork,
    BrokerBusy,
    BrokerLeaving,
    BrokerNotRegistered,
    BrokerUnreachable,
    FilterRefused,
    FollowerLacks,
    InvalidMessage,
    MessageRefused,
    NameServerUnreachable,
    NoPermission,
    NoReply,
    NoRoute,
    NotANameServer,
    OffsetGone,
    OtherLoop,
    RecallNotAllowed,
    RoutesNotKnownYet,
    SendFailed,
    SomeFailed,
    TopicNotFound,
)
from kerolox.client.messages import Message, Queue, Receipt, Received, SendStatus
from kerolox.client.options import ClientOptions, ProducerOptions
from kerolox.client.send.hooks import SendContext, SendHook
from kerolox.client.send.transactions import TransactionState
from kerolox.client.sockets.socket_cluster import SocketCluster
from kerolox.errors import Closed, KeroloxError
from kerolox.net.tls import ClientTls

__all__ = [
    "AccessDenied",
    "AfterFork",
    "Batch",
    "BrokerBusy",
    "BrokerLeaving",
    "BrokerNotRegistered",
    "BrokerUnreachable",
    "Client",
    "ClientOptions",
    "ClientTls",
    "Closed",
    "ConsumeHook",
    "DeadLetter",
    "FilterRefused",
    "FollowerLacks",
    "InvalidMessage",
    "KeroloxError",
    "Message",
    "MessageRefused",
    "NameServerUnreachable",
    "NoPermission",
    "NoReply",
    "NoRoute",
    "NotANameServer",
    "OffsetGone",
    "OtherLoop",
    "Producer",
    "ProducerOptions",
    "PullConsumer",
    "PullOptions",
    "PushConsumer",
    "PushOptions",
    "Queue",
    "RecallNotAllowed",
    "Receipt",
    "Received",
    "Retry",
    "RoutesNotKnownYet",
    "SendContext",
    "SendFailed",
    "SendHook",
    "SendStatus",
    "SocketCluster",
    "SomeFailed",
    "Suspend",
    "TopicNotFound",
    "Transaction",
    "TransactionState",
]
