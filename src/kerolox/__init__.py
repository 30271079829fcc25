"""kerolox: Apache RocketMQ rebuilt in Python.

The names of the client are here; they are loaded when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kerolox.client.client import Client as Client
    from kerolox.client.messages import Message as Message
    from kerolox.client.messages import Queue as Queue
    from kerolox.client.messages import Receipt as Receipt
    from kerolox.client.messages import Received as Received
    from kerolox.client.messages import SendStatus as SendStatus
    from kerolox.client.options import ClientOptions as ClientOptions
    from kerolox.client.options import ProducerOptions as ProducerOptions
    from kerolox.client.producer import Producer as Producer
    from kerolox.client.transactions import TransactionState as TransactionState
    from kerolox.errors import KeroloxError as KeroloxError
    from kerolox.net.tls import ClientTls as ClientTls

__version__ = "0.1.0"

# Public name → the module it lives in.
_PLACES = {
    "Client": "kerolox.client.client",
    "ClientOptions": "kerolox.client.options",
    "ClientTls": "kerolox.net.tls",
    "KeroloxError": "kerolox.errors",
    "Message": "kerolox.client.messages",
    "Producer": "kerolox.client.producer",
    "ProducerOptions": "kerolox.client.options",
    "Queue": "kerolox.client.messages",
    "Receipt": "kerolox.client.messages",
    "Received": "kerolox.client.messages",
    "SendStatus": "kerolox.client.messages",
    "TransactionState": "kerolox.client.transactions",
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
