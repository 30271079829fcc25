"""The client without await. See :mod:`kerolox.client.blocking.producer`.

The names of ``kerolox`` are here, with the blocking twins in place of what is awaited. They are loaded when
they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import kerolox

if TYPE_CHECKING:
    from kerolox.client.admin.results import DeadLetterGroup as DeadLetterGroup
    from kerolox.client.admin.results import FoundMessages as FoundMessages
    from kerolox.client.admin.results import Group as Group
    from kerolox.client.admin.results import GroupAtBroker as GroupAtBroker
    from kerolox.client.admin.results import GroupMember as GroupMember
    from kerolox.client.admin.results import GroupMembers as GroupMembers
    from kerolox.client.admin.results import OffsetChange as OffsetChange
    from kerolox.client.admin.results import QueueProgress as QueueProgress
    from kerolox.client.admin.results import QueueStats as QueueStats
    from kerolox.client.admin.results import ResendResult as ResendResult
    from kerolox.client.admin.results import Rule as Rule
    from kerolox.client.admin.results import Topic as Topic
    from kerolox.client.admin.results import TopicAtBroker as TopicAtBroker
    from kerolox.client.admin.results import TopicGroup as TopicGroup
    from kerolox.client.admin.results import User as User
    from kerolox.client.blocking.admin import Admin as Admin
    from kerolox.client.blocking.consumers import PullConsumer as PullConsumer
    from kerolox.client.blocking.consumers import PushConsumer as PushConsumer
    from kerolox.client.blocking.producer import Client as Client
    from kerolox.client.blocking.producer import Producer as Producer
    from kerolox.client.blocking.producer import Transaction as Transaction
    from kerolox.client.consume.consumer_options import PullOptions as PullOptions
    from kerolox.client.consume.consumer_options import PushOptions as PushOptions
    from kerolox.client.consume.outcomes import DeadLetter as DeadLetter
    from kerolox.client.consume.outcomes import Retry as Retry
    from kerolox.client.consume.outcomes import Suspend as Suspend
    from kerolox.client.consume.pull_consumer import Batch as Batch
    from kerolox.client.consume.push_consumer import ConsumeHook as ConsumeHook
    from kerolox.client.errors import AccessDenied as AccessDenied
    from kerolox.client.errors import AfterFork as AfterFork
    from kerolox.client.errors import AlreadyThere as AlreadyThere
    from kerolox.client.errors import BrokerBusy as BrokerBusy
    from kerolox.client.errors import BrokerLeaving as BrokerLeaving
    from kerolox.client.errors import BrokerNotRegistered as BrokerNotRegistered
    from kerolox.client.errors import BrokerUnreachable as BrokerUnreachable
    from kerolox.client.errors import FilterRefused as FilterRefused
    from kerolox.client.errors import FollowerLacks as FollowerLacks
    from kerolox.client.errors import InvalidMessage as InvalidMessage
    from kerolox.client.errors import MessageRefused as MessageRefused
    from kerolox.client.errors import NameServerStarting as NameServerStarting
    from kerolox.client.errors import NameServerUnreachable as NameServerUnreachable
    from kerolox.client.errors import NoNameServer as NoNameServer
    from kerolox.client.errors import NoPermission as NoPermission
    from kerolox.client.errors import NoReply as NoReply
    from kerolox.client.errors import NoRoute as NoRoute
    from kerolox.client.errors import NotAllowedThere as NotAllowedThere
    from kerolox.client.errors import NotANameServer as NotANameServer
    from kerolox.client.errors import NotEverywhere as NotEverywhere
    from kerolox.client.errors import NotFound as NotFound
    from kerolox.client.errors import OffsetGone as OffsetGone
    from kerolox.client.errors import OtherLoop as OtherLoop
    from kerolox.client.errors import RecallNotAllowed as RecallNotAllowed
    from kerolox.client.errors import ResendStopped as ResendStopped
    from kerolox.client.errors import RoutesNotKnownYet as RoutesNotKnownYet
    from kerolox.client.errors import SendFailed as SendFailed
    from kerolox.client.errors import SendTimeout as SendTimeout
    from kerolox.client.errors import SomeFailed as SomeFailed
    from kerolox.client.errors import TopicNotFound as TopicNotFound
    from kerolox.client.errors import TopicUnknownAtBroker as TopicUnknownAtBroker
    from kerolox.client.messages import Message as Message
    from kerolox.client.messages import Queue as Queue
    from kerolox.client.messages import Receipt as Receipt
    from kerolox.client.messages import Received as Received
    from kerolox.client.messages import SendStatus as SendStatus
    from kerolox.client.options import ClientOptions as ClientOptions
    from kerolox.client.options import ProducerOptions as ProducerOptions
    from kerolox.client.send.hooks import SendContext as SendContext
    from kerolox.client.send.hooks import SendHook as SendHook
    from kerolox.client.send.transactions import TransactionState as TransactionState
    from kerolox.client.sockets.socket_cluster import SocketCluster as SocketCluster
    from kerolox.errors import Closed as Closed
    from kerolox.errors import ConnectFailed as ConnectFailed
    from kerolox.errors import ConnectionLost as ConnectionLost
    from kerolox.errors import InvalidRequest as InvalidRequest
    from kerolox.errors import KeroloxError as KeroloxError
    from kerolox.errors import OptionError as OptionError
    from kerolox.errors import Overloaded as Overloaded
    from kerolox.errors import ProtocolError as ProtocolError
    from kerolox.errors import RequestFailed as RequestFailed
    from kerolox.errors import RequestTimeout as RequestTimeout
    from kerolox.net.tls import ClientTls as ClientTls

# Name of a twin → its module. All other names are those of kerolox.
_TWINS = {
    "Admin": "kerolox.client.blocking.admin",
    "Client": "kerolox.client.blocking.producer",
    "Producer": "kerolox.client.blocking.producer",
    "PullConsumer": "kerolox.client.blocking.consumers",
    "PushConsumer": "kerolox.client.blocking.consumers",
    "Transaction": "kerolox.client.blocking.producer",
}

__all__ = sorted({*kerolox.__all__, *_TWINS} - {"__version__"})


def __getattr__(name: str) -> Any:
    if name in _TWINS:
        value = getattr(import_module(_TWINS[name]), name)
    elif name in __all__:
        value = getattr(kerolox, name)
    else:
        raise AttributeError(f"module 'kerolox.blocking' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
