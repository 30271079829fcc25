"""kerolox: Apache RocketMQ rebuilt in Python.

The names of the client are exported here and loaded when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kerolox.client.admin.admin import Admin as Admin
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
    from kerolox.client.cluster.client import Client as Client
    from kerolox.client.consume.consumer_options import PullOptions as PullOptions
    from kerolox.client.consume.consumer_options import PushOptions as PushOptions
    from kerolox.client.consume.outcomes import DeadLetter as DeadLetter
    from kerolox.client.consume.outcomes import Retry as Retry
    from kerolox.client.consume.outcomes import Suspend as Suspend
    from kerolox.client.consume.pull_consumer import Batch as Batch
    from kerolox.client.consume.pull_consumer import PullConsumer as PullConsumer
    from kerolox.client.consume.push_consumer import ConsumeHook as ConsumeHook
    from kerolox.client.consume.push_consumer import PushConsumer as PushConsumer
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
    from kerolox.client.send.producer import Producer as Producer
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

__version__ = "0.1.0"

# Public name → its module.
_PLACES = {
    "AccessDenied": "kerolox.client.errors",
    "Admin": "kerolox.client.admin.admin",
    "AfterFork": "kerolox.client.errors",
    "AlreadyThere": "kerolox.client.errors",
    "Batch": "kerolox.client.consume.pull_consumer",
    "BrokerBusy": "kerolox.client.errors",
    "BrokerLeaving": "kerolox.client.errors",
    "BrokerNotRegistered": "kerolox.client.errors",
    "BrokerUnreachable": "kerolox.client.errors",
    "Client": "kerolox.client.cluster.client",
    "ClientOptions": "kerolox.client.options",
    "ClientTls": "kerolox.net.tls",
    "Closed": "kerolox.errors",
    "ConnectFailed": "kerolox.errors",
    "ConnectionLost": "kerolox.errors",
    "ConsumeHook": "kerolox.client.consume.push_consumer",
    "DeadLetter": "kerolox.client.consume.outcomes",
    "DeadLetterGroup": "kerolox.client.admin.results",
    "FilterRefused": "kerolox.client.errors",
    "FollowerLacks": "kerolox.client.errors",
    "FoundMessages": "kerolox.client.admin.results",
    "Group": "kerolox.client.admin.results",
    "GroupAtBroker": "kerolox.client.admin.results",
    "GroupMember": "kerolox.client.admin.results",
    "GroupMembers": "kerolox.client.admin.results",
    "InvalidMessage": "kerolox.client.errors",
    "InvalidRequest": "kerolox.errors",
    "KeroloxError": "kerolox.errors",
    "Message": "kerolox.client.messages",
    "MessageRefused": "kerolox.client.errors",
    "NameServerStarting": "kerolox.client.errors",
    "NameServerUnreachable": "kerolox.client.errors",
    "NoNameServer": "kerolox.client.errors",
    "NoPermission": "kerolox.client.errors",
    "NoReply": "kerolox.client.errors",
    "NoRoute": "kerolox.client.errors",
    "NotANameServer": "kerolox.client.errors",
    "NotAllowedThere": "kerolox.client.errors",
    "NotEverywhere": "kerolox.client.errors",
    "NotFound": "kerolox.client.errors",
    "OffsetChange": "kerolox.client.admin.results",
    "OffsetGone": "kerolox.client.errors",
    "OptionError": "kerolox.errors",
    "OtherLoop": "kerolox.client.errors",
    "Overloaded": "kerolox.errors",
    "Producer": "kerolox.client.send.producer",
    "ProducerOptions": "kerolox.client.options",
    "ProtocolError": "kerolox.errors",
    "PullConsumer": "kerolox.client.consume.pull_consumer",
    "PullOptions": "kerolox.client.consume.consumer_options",
    "PushConsumer": "kerolox.client.consume.push_consumer",
    "PushOptions": "kerolox.client.consume.consumer_options",
    "Queue": "kerolox.client.messages",
    "QueueProgress": "kerolox.client.admin.results",
    "QueueStats": "kerolox.client.admin.results",
    "RecallNotAllowed": "kerolox.client.errors",
    "Receipt": "kerolox.client.messages",
    "Received": "kerolox.client.messages",
    "RequestFailed": "kerolox.errors",
    "RequestTimeout": "kerolox.errors",
    "ResendResult": "kerolox.client.admin.results",
    "ResendStopped": "kerolox.client.errors",
    "Retry": "kerolox.client.consume.outcomes",
    "RoutesNotKnownYet": "kerolox.client.errors",
    "Rule": "kerolox.client.admin.results",
    "SendContext": "kerolox.client.send.hooks",
    "SendFailed": "kerolox.client.errors",
    "SendHook": "kerolox.client.send.hooks",
    "SendStatus": "kerolox.client.messages",
    "SendTimeout": "kerolox.client.errors",
    "SocketCluster": "kerolox.client.sockets.socket_cluster",
    "SomeFailed": "kerolox.client.errors",
    "Suspend": "kerolox.client.consume.outcomes",
    "Topic": "kerolox.client.admin.results",
    "TopicAtBroker": "kerolox.client.admin.results",
    "TopicGroup": "kerolox.client.admin.results",
    "TopicNotFound": "kerolox.client.errors",
    "TopicUnknownAtBroker": "kerolox.client.errors",
    "TransactionState": "kerolox.client.send.transactions",
    "User": "kerolox.client.admin.results",
}

__all__ = ["__version__", *sorted(_PLACES)]


def __getattr__(name: str) -> Any:
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module 'kerolox' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(place), name)
    return value


def __dir__() -> list[str]:
    return __all__
