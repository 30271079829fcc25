"""kerolox: Apache RocketMQ rebuilt in Python.

The names of the client are here; they are loaded when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
    from kerolox.client.messages import Message as Message
    from kerolox.client.messages import Queue as Queue
    from kerolox.client.messages import Receipt as Receipt
    from kerolox.client.messages import Received as Received
    from kerolox.client.messages import SendStatus as SendStatus
    from kerolox.client.options import ClientOptions as ClientOptions
    from kerolox.client.options import ProducerOptions as ProducerOptions
    from kerolox.client.send.producer import Producer as Producer
    from kerolox.client.send.transactions import TransactionState as TransactionState
    from kerolox.errors import KeroloxError as KeroloxError
    from kerolox.net.tls import ClientTls as ClientTls

# The one place of the version: a build reads it from here. Not from the metadata of an installation, which
# executors of Spark do not have.
__version__ = "0.1.0"

# Public name → the module it lives in.
_PLACES = {
    "Batch": "kerolox.client.consume.pull_consumer",
    "Client": "kerolox.client.cluster.client",
    "ClientOptions": "kerolox.client.options",
    "ClientTls": "kerolox.net.tls",
    "ConsumeHook": "kerolox.client.consume.push_consumer",
    "DeadLetter": "kerolox.client.consume.outcomes",
    "KeroloxError": "kerolox.errors",
    "Message": "kerolox.client.messages",
    "Producer": "kerolox.client.send.producer",
    "ProducerOptions": "kerolox.client.options",
    "PullConsumer": "kerolox.client.consume.pull_consumer",
    "PullOptions": "kerolox.client.consume.consumer_options",
    "PushConsumer": "kerolox.client.consume.push_consumer",
    "PushOptions": "kerolox.client.consume.consumer_options",
    "Queue": "kerolox.client.messages",
    "Receipt": "kerolox.client.messages",
    "Received": "kerolox.client.messages",
    "Retry": "kerolox.client.consume.outcomes",
    "SendStatus": "kerolox.client.messages",
    "Suspend": "kerolox.client.consume.outcomes",
    "TransactionState": "kerolox.client.send.transactions",
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
