"""Hooks that are called before and after a message is sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from kerolox.client.messages import Message, Receipt
from kerolox.client.send.tracing import TraceKind, Tracer

if TYPE_CHECKING:
    from kerolox.client.cluster.client import Client


class SendContext(msgspec.Struct):
    """Context of a message that is being sent."""

    message: Message
    group: str
    properties: dict[str, str]  # properties that hooks add to the message
    kind: TraceKind = TraceKind.NORMAL
    receipt: Receipt | None = None
    error: Exception | None = None
    elapsed_s: float = 0.0


class SendHook:
    """Base of send hooks. Its methods are called for every message and must be fast."""

    def before_send(self, context: SendContext) -> None:
        """React before a message is sent. May add properties, or raise to reject the message."""

    def after_send(self, context: SendContext) -> None:
        """React after a message was sent, with a receipt or an error; a one-way message has neither."""


def extra_properties(context: SendContext) -> str:
    """Return the properties added by hooks, packed."""
    return "".join(f"{name}\x01{value}\x02" for name, value in context.properties.items())


def run_before(
    hooks: Sequence[SendHook], message: Message, group: str, kind: TraceKind = TraceKind.NORMAL
) -> SendContext:
    if kind is TraceKind.NORMAL and message.is_delayed:
        kind = TraceKind.DELAY
    context = SendContext(message=message, group=group, properties={}, kind=kind)
    for hook in hooks:
        hook.before_send(context)
    return context


def run_after(hooks: Sequence[SendHook], context: SendContext, outcome: object, elapsed_s: float) -> None:
    context.elapsed_s = elapsed_s
    if isinstance(outcome, Receipt):
        context.receipt = outcome
    elif isinstance(outcome, Exception):
        context.error = outcome
    for hook in hooks:
        hook.after_send(context)


class TraceHook(SendHook):
    """Hook that writes trace records of sent messages."""

    def __init__(self, tracer: Tracer, client: Client) -> None:
        self._tracer = tracer
        self._client = client

    def after_send(self, context: SendContext) -> None:
        receipt = context.receipt
        if receipt is None or not receipt.trace_on:
            return
        message = context.message
        cost_ms = round(context.elapsed_s * 1000)
        self._tracer.sent(
            message.topic,
            message,
            receipt.msg_id,
            receipt.offset_msg_id,
            kind=context.kind,
            began_ms=self._client.clock.wall_ms() - cost_ms,
            cost_ms=cost_ms,
            address=self._client.routes.known.address(receipt.queue.broker) or "",
            body_bytes=len(message.body_bytes()),
            region=receipt.region,
            success=receipt.ok,
        )
