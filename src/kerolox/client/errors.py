"""Errors of a client, distinguished by the action they require.

All derive from :class:`kerolox.errors.KeroloxError`: ``retriable`` is True if the same call may succeed
later, ``next_step`` is the required action. Error responses are :class:`kerolox.errors.RequestFailed` or one
of its subclasses here, with the ``response_code`` of the protocol.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from kerolox.errors import (
    ConnectFailed,
    ConnectionLost,
    KeroloxError,
    RequestFailed,
    RequestTimeout,
    sentences,
)
from kerolox.protocol.codes import ResponseCode, request_name
from kerolox.protocol.headers.route import NOT_READY

if TYPE_CHECKING:
    from kerolox.client.messages import Queue, Receipt
    from kerolox.protocol.command import Command


class InvalidMessage(KeroloxError):
    """The message is invalid; nothing was sent."""

    code = ResponseCode.MESSAGE_ILLEGAL


class AfterFork(KeroloxError):
    """Used in a child process; connections and threads stayed in the parent."""

    next_step = "open a new client in the child process"

    def __init__(self, what: str) -> None:
        super().__init__(
            f"this {what} was opened in the parent process and does not work here: {self.next_step}"
        )


class OtherLoop(KeroloxError):
    """Used in another event loop than the one it was opened in; its connections belong to that one."""

    next_step = (
        "open one client per event loop, in the coroutine given to asyncio.run, or use kerolox.blocking, "
        "which works in any thread"
    )

    def __init__(self, what: str) -> None:
        super().__init__(
            f"this {what} was opened in another event loop and does not work in this one: {self.next_step}"
        )


class NoNameServer(KeroloxError, ConnectionError):
    """All name servers were asked, none answered."""

    retriable = True


# --- administration ---------------------------------------------------------------------------------


class NotFound(KeroloxError):
    """A look-up that found nothing: a topic, a group, a message, a user."""


class AlreadyThere(KeroloxError):
    """An object to be created exists already."""


class NotEverywhere(KeroloxError):
    """A change reached some brokers, and not all. The text names both."""


class ResendStopped(KeroloxError):
    """A run that resends dead letters stopped early. Its cause says why."""

    next_step = "repeat the call: it passes over what was resent"

    def __init__(self, group: str, total: int, resent: int, passed_over: int, reason: KeroloxError) -> None:
        self.group = group
        self.total, self.resent, self.passed_over = total, resent, passed_over
        self.retriable = reason.retriable
        super().__init__(
            sentences(
                f"resending dead letters of group {group} stopped after {resent + passed_over} of {total}: "
                f"{reason}",
                self.next_step,
            )
        )


# --- no route ---------------------------------------------------------------------------------------


class NoRoute(KeroloxError):
    """The topic has no usable route. The subclasses give the reason."""

    passes = False  # True for a temporary condition: retry until the timeout

    def __init__(self, topic: str, what: str, next_step: str) -> None:
        self.topic = topic
        self.next_step = next_step
        super().__init__(sentences(f"no route to topic {topic!r}: {what}", next_step))


_NOT_TRUSTED = "CERTIFICATE_VERIFY_FAILED"
_HUNG_UP = ("reset by peer", "closed before the answer", "the peer closed it")


class NameServerUnreachable(NoRoute, ConnectionError):
    """None of the name servers answered."""

    retriable = True

    def __init__(self, topic: str, addresses: Sequence[str], reason: object) -> None:
        self.addresses = tuple(addresses)
        step = "check the name server addresses given to this client, and that one is running there"
        if _NOT_TRUSTED in str(reason):
            self.retriable = False  # the server answers, and a retry meets the same certificate
            step = (
                "if that is the right server, trust its certificate authority: ClientTls(ca=...), or "
                "KEROLOX_CLIENT_TLS_CA in the environment"
            )
        elif any(word in str(reason) for word in _HUNG_UP):
            step += (
                ". If it accepts only TLS, enable TLS: ClientTls(), or KEROLOX_CLIENT_TLS=on in the "
                "environment"
            )
        super().__init__(topic, f"no name server answered ({', '.join(addresses)}): {reason}", step)


class NotANameServer(NoRoute):
    """Something answered, but not as a name server does."""

    def __init__(self, topic: str, address: str, reason: object) -> None:
        self.address = address
        super().__init__(
            topic,
            f"{address} is not a name server: {reason}",
            "give the address of a name server (port 9876 by default), not that of a broker",
        )


class RoutesNotKnownYet(NoRoute):
    """The name server has just started, and waits for its brokers to register."""

    retriable = passes = True

    def __init__(self, topic: str, nameserver: str) -> None:
        self.nameserver = nameserver
        super().__init__(
            topic,
            f"name server {nameserver} has just started and does not know its brokers yet",
            "try again in some seconds",
        )


class TopicNotFound(NoRoute, NotFound):
    """The name servers know no such topic, and it cannot be made on the way.

    ``was_known``: this client had a route before, so the topic's broker may not be registered yet.
    """

    code = ResponseCode.TOPIC_NOT_EXIST

    def __init__(
        self, topic: str, nameserver: str, *, creating: bool = False, was_known: bool = False
    ) -> None:
        self.nameserver = nameserver
        self.was_known = self.retriable = self.passes = was_known
        tried = (
            ", and no broker there creates topics automatically (autoCreateTopicEnable is off)"
            if creating
            else ""
        )
        super().__init__(
            topic,
            f"the topic does not exist at name server {nameserver}{tried}",
            f"create it (kerolox topic create {topic}), or check the name, the namespace and the name server",
        )


class BrokerNotRegistered(NoRoute):
    """The name server answers, but no broker of the topic is registered there."""

    retriable = passes = True

    def __init__(self, topic: str, nameserver: str, what: str) -> None:
        self.nameserver = nameserver
        super().__init__(
            topic,
            f"{what} at name server {nameserver}",
            "check that the broker runs and has this name server in its namesrvAddr",
        )


class NoPermission(NoRoute):
    """The topic exists, but none of its queues is writable or readable."""

    code = ResponseCode.NO_PERMISSION

    def __init__(self, topic: str, action: str) -> None:
        super().__init__(
            topic,
            f"none of its queues may be {action}",
            "check the permissions of the topic and of its brokers (kerolox topic route)",
        )


class BrokerUnreachable(ConnectFailed):
    """The advertised address of a broker is unreachable from here."""

    next_step = (
        "if the broker runs, it advertises an address that does not lead to it from this machine: "
        "set its brokerIP1 (and check firewalls and container networks)"
    )

    def __init__(self, broker: str, address: str, reason: object) -> None:
        self.broker = broker
        self.address = address
        KeroloxError.__init__(
            self,
            sentences(
                f"broker {broker or '?'} advertises {address}, which cannot be reached from here: {reason}",
                self.next_step,
            ),
        )


# --- answers with an error code ---------------------------------------------------------------------


class AccessDenied(RequestFailed):
    """The request was rejected for lack of rights or for a wrong signature. A retry cannot help, nor can
    another broker."""

    next_step = (
        "give the keys of a user that this server knows: access_key and secret_key, or KEROLOX_ACCESS_KEY "
        "and KEROLOX_SECRET_KEY in the environment"
    )

    def __init__(self, code: int, remark: str | None, *, address: str = "", request: str = "") -> None:
        super().__init__(code, remark, address=address, request=request)
        self.can_retry = self.retriable = False
        if _NO_RIGHT in (remark or ""):
            self.next_step = (
                "this user needs a rule that allows it; kerolox access explain says what its rules decide"
            )
        self.args = (sentences(self.args[0], self.next_step),)


class NotAllowedThere(AccessDenied):
    """The broker's settings forbid it: writing or reading of the topic, by the group, or at all."""

    next_step = "check the settings of the topic, the group and the broker there"


class NameServerStarting(RequestFailed):
    """The name server has just started and reports that it does not know its brokers yet."""

    next_step = "try again in some seconds"


class RecallNotAllowed(NotAllowedThere):
    """The broker does not allow recalls."""

    next_step = "set recallMessageEnable=true at the broker: its default is false"


class FilterRefused(RequestFailed):
    """The broker does not support the filter. A retry cannot help."""

    next_step = "check the filter expression: this broker cannot use it"

    def __init__(self, code: int, remark: str | None, *, address: str = "", request: str = "") -> None:
        super().__init__(code, remark, address=address, request=request)
        self.can_retry = self.retriable = False
        if code == ResponseCode.SYSTEM_ERROR:
            self.next_step = "set enablePropertyFilter=true at the broker, or subscribe by tags"
        self.args = (sentences(self.args[0], self.next_step),)


class BrokerBusy(RequestFailed):
    """The broker rejected the request because of load. Another broker, or this one later, may accept it."""

    next_step = "send slower, or retry later"


class BrokerLeaving(RequestFailed):
    """The broker is stopping gracefully and rejected the request."""

    next_step = "retry: another broker, or this one after its restart, accepts the request"


class TopicUnknownAtBroker(RequestFailed):
    """The broker does not have the topic, although it is in the route."""

    next_step = "create the topic at this broker, or wait for the routes to be refreshed"


class MessageRefused(RequestFailed):
    """The broker rejected the message: too large, delayed for too long, or against another limit."""

    next_step = "see the remark; the limits are settings of the broker"


class StoredUnsafely(RequestFailed):
    """Stored, but not flushed or replicated as required; raised only to retry at another broker."""

    def __init__(self, receipt: Receipt, remark: str | None, address: str) -> None:
        super().__init__(receipt.status, remark, address=address)
        self.receipt = receipt
        self.can_retry = self.retriable = True


_KINDS: dict[int, type[RequestFailed]] = {
    ResponseCode.GO_AWAY: BrokerLeaving,
    ResponseCode.SYSTEM_BUSY: BrokerBusy,
    ResponseCode.FLOW_CONTROL: BrokerBusy,
    ResponseCode.TOPIC_NOT_EXIST: TopicUnknownAtBroker,
    ResponseCode.MESSAGE_ILLEGAL: MessageRefused,
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: FilterRefused,
    ResponseCode.FILTER_DATA_NOT_EXIST: FilterRefused,
}


# Beginning of the remark of brokers that filter only by tags.
_NO_FILTER = "The broker does not support consumer to filter message"
_NO_RIGHT = "has no permission to access"  # of an authenticated user
_NO_RECALL = "recall failed, operation is forbidden"
# Beginnings of remarks about settings instead of keys.
_SETTINGS = ("the broker[", "the topic[", "the consumer group[", "subscription group no permission")


def failure(answer: Command, *, address: str, code: int) -> RequestFailed:
    """Return the error for a response with an error code."""
    kind = _KINDS.get(answer.code, RequestFailed)
    if answer.code == ResponseCode.SYSTEM_ERROR and answer.remark == NOT_READY:
        kind = NameServerStarting
    elif answer.code == ResponseCode.SYSTEM_ERROR and (answer.remark or "").startswith(_NO_FILTER):
        kind = FilterRefused
    if is_access_failure(answer.code, answer.remark):
        kind = NotAllowedThere if (answer.remark or "").startswith(_SETTINGS) else AccessDenied
        if (answer.remark or "").startswith(_NO_RECALL):
            kind = RecallNotAllowed
    return kind(answer.code, answer.remark, address=address, request=request_name(code))


def is_access_failure(code: int, remark: str | None) -> bool:
    """Return True for a rejection by access control. RocketMQ 4 sends SYSTEM_ERROR and an exception name."""
    return code == ResponseCode.NO_PERMISSION or (
        code == ResponseCode.SYSTEM_ERROR and "AclException" in (remark or "")
    )


# --- reading ----------------------------------------------------------------------------------------


class OffsetGone(KeroloxError):
    """The requested offset does not exist any more, or not yet."""

    def __init__(self, queue: Queue, asked: int, first: int, end: int) -> None:
        self.queue, self.asked, self.first, self.end = queue, asked, first, end
        super().__init__(
            f"queue {queue.topic}/{queue.broker}/{queue.queue_id} has offsets {first} to {end}, not {asked}"
        )


class FollowerLacks(OffsetGone):
    """The follower does not have the requested offset, and no other replica is reachable."""

    retriable = True
    next_step = "restart the leader; messages that no follower has are lost if it does not return"

    def __init__(self, gone: OffsetGone, follower: str) -> None:
        self.queue, self.asked, self.first, self.end = gone.queue, gone.asked, gone.first, gone.end
        self.follower = follower
        queue = gone.queue
        KeroloxError.__init__(
            self,
            sentences(
                f"queue {queue.topic}/{queue.broker}/{queue.queue_id}: offset {gone.asked} was to be read, "
                f"but follower {follower} has {gone.first} to {gone.end}, and its leader is gone",
                self.next_step,
            ),
        )


# --- sending ----------------------------------------------------------------------------------------


class SendFailed(KeroloxError):
    """No broker acknowledged the message in time. ``tried`` lists the brokers and their errors.

    ``may_be_stored``: a response was lost, so a broker may have stored the message.
    """

    def __init__(
        self, topic: str, tried: Iterable[tuple[str, Exception]], elapsed_s: float, why: str
    ) -> None:
        self.topic = topic
        self.tried = tuple(tried)
        self.elapsed_s = elapsed_s
        self.may_be_stored = any(
            isinstance(error, ConnectionLost | RequestTimeout) for _, error in self.tried
        )
        last = self.tried[-1][1] if self.tried else None
        self.code = getattr(last, "response_code", self.code)
        self.retriable = bool(getattr(last, "retriable", True))
        self.next_step = getattr(last, "next_step", "") or "try again later"
        if self.may_be_stored:
            self.next_step = (
                "the message may have been stored: send it again only if duplicates are acceptable"
            )
        steps = "; ".join(f"{broker}: {error}" for broker, error in self.tried) or "no broker could be asked"
        super().__init__(
            sentences(
                f"message to topic {topic!r} not sent after {elapsed_s:.2f} s and {len(self.tried)} "
                f"{'try' if len(self.tried) == 1 else 'tries'} ({why}): {steps}",
                f"next: {self.next_step}",
            )
        )


class SendTimeout(SendFailed, TimeoutError):
    """The timeout of a send expired."""


class SomeFailed(KeroloxError):
    """Some of many messages were not sent. ``results`` has a receipt or an error for each, in order."""

    def __init__(self, results: Sequence[object]) -> None:
        self.results = tuple(results)
        self.failed = [item for item in results if isinstance(item, Exception)]
        self.retriable = all(getattr(error, "retriable", False) for error in self.failed)
        super().__init__(
            f"{len(self.failed)} of {len(results)} messages were not sent; the first error: {self.failed[0]}"
        )


class NoReply(KeroloxError, TimeoutError):
    """The request was sent, and no reply to it came in time."""

    retriable = True
    next_step = "check that a consumer of the topic replies, or give it more time"

    def __init__(self, topic: str, correlation_id: str, timeout_s: float) -> None:
        self.correlation_id = correlation_id
        super().__init__(
            sentences(
                f"no reply to the request {correlation_id} in topic {topic!r} within {timeout_s:g} s",
                self.next_step,
            )
        )
