"""The client without await. See :mod:`kerolox.client.blocking.producer`."""

from __future__ import annotations

from kerolox.client.blocking.consumers import PullConsumer, PushConsumer
from kerolox.client.blocking.producer import Client, Producer, Transaction
from kerolox.client.consume.consumer_options import PullOptions, PushOptions
from kerolox.client.consume.outcomes import DeadLetter, Retry, Suspend
from kerolox.client.consume.pull_consumer import Batch
from kerolox.client.consume.push_consumer import ConsumeHook
from kerolox.client.messages import Message, Queue, Receipt, Received, SendStatus
from kerolox.client.options import ClientOptions, ProducerOptions
from kerolox.client.send.transactions import TransactionState
from kerolox.errors import KeroloxError
from kerolox.net.tls import ClientTls

__all__ = [
    "Batch",
    "Client",
    "ClientOptions",
    "ClientTls",
    "ConsumeHook",
    "DeadLetter",
    "KeroloxError",
    "Message",
    "Producer",
    "ProducerOptions",
    "PullConsumer",
    "PullOptions",
    "PushConsumer",
    "PushOptions",
    "Queue",
    "Receipt",
    "Received",
    "Retry",
    "SendStatus",
    "Suspend",
    "Transaction",
    "TransactionState",
]
