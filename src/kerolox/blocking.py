"""The client without await. See :mod:`kerolox.client.blocking`."""

from __future__ import annotations

from kerolox.client.blocking import Client, Producer, Transaction
from kerolox.client.messages import Message, Queue, Receipt, Received, SendStatus
from kerolox.client.options import ClientOptions, ProducerOptions
from kerolox.client.transactions import TransactionState
from kerolox.errors import KeroloxError
from kerolox.net.tls import ClientTls

__all__ = [
    "Client",
    "ClientOptions",
    "ClientTls",
    "KeroloxError",
    "Message",
    "Producer",
    "ProducerOptions",
    "Queue",
    "Receipt",
    "Received",
    "SendStatus",
    "Transaction",
    "TransactionState",
]
