"""What can go wrong for a client, told apart by what to do about it.

Under :class:`kerolox.errors.KeroloxError`: ``retriable`` says whether the same call may succeed later,
``next_step`` what to do. Answers with an error code are :class:`kerolox.errors.RequestFailed` or one of
its children here, with the wire's ``response_code``.
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
    """A message no broker would take; nothing was sent."""

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
    """Nobody is known to serve the topic. The children say why."""

    passes = False  # it may be over in a moment: whoever has time asks again

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
            self.retriable = False  # it is there, and will not be another one in a moment
            step = (
                "if that is the right server, trust who signed it: ClientTls(ca=...), or "
                "KEROLOX_CLIENT_TLS_CA in the environment"
            )
        elif any(word in str(reason) for word in _HUNG_UP):
            step += (
                ". If it takes TLS only, speak it: ClientTls(), or KEROLOX_CLIENT_TLS=on in the environment"
            )
        super().__init__(topic, f"no name server answered ({', '.join(addresses)}): {reason}", step)


class NotANameServer(NoRoute):
    """Something answered, but not as a name server does."""

    def __init__(self, topic: str, address: str, reason: object) -> None:
        self.address = address
        super().__init__(
            topic,
            f"{address} is no name server: {reason}",
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

    ``was_known``: this client has its route from before, so perhaps its broker has only not registered yet.
    """

    code = ResponseCode.TOPIC_NOT_EXIST

    def __init__(
        self, topic: str, nameserver: str, *, creating: bool = False, was_known: bool = False
    ) -> None:
        self.nameserver = nameserver
        self.was_known = self.retriable = self.passes = was_known
        tried = (
            ", and no broker there makes topics on the way (autoCreateTopicEnable is off)" if creating else ""
        )
        super().__init__(
            topic,
            f"name server {nameserver} knows no such topic{tried}",
            f"create it (kerolox topic create {topic}), or check the name, the namespace and the name server",
        )


class BrokerNotRegistered(NoRoute):
    """A name server is there, but no broker that could serve the topic has registered."""

    retriable = passes = True

    def __init__(self, topic: str, nameserver: str, what: str) -> None:
        self.nameserver = nameserver
        super().__init__(
            topic,
            f"{what} at name server {nameserver}",
            "check that the broker runs and has this name server in its namesrvAddr",
        )


class NoPermission(NoRoute):
    """The topic is there, but none of its queues may be written or read."""

    code = ResponseCode.NO_PERMISSION

    def __init__(self, topic: str, action: str) -> None:
        super().__init__(
            topic,
            f"none of its queues may be {action}",
            "look at the permissions of the topic and of its brokers (kerolox topic route)",
        )


class BrokerUnreachable(ConnectFailed):
    """The address a broker advertises cannot be reached from here."""

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
    """Refused for lack of rights, or for a wrong signature. Asking again does not help, nor does asking
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
    """Set to be so at this broker: no writing or reading of the topic, by the group, or at all."""

    next_step = "look at the settings of the topic, the group and the broker there"


class NameServerStarting(RequestFailed):
    """A name server that has just started does not know its brokers yet, and says so."""

    next_step = "try again in some seconds"


class RecallNotAllowed(NotAllowedThere):
    """The broker takes no messages back."""

    next_step = "set recallMessageEnable=true at the broker: its default is false"


class FilterRefused(RequestFailed):
    """The broker does not choose messages in the way that was asked for. Asking again does not help."""

    next_step = "look at the condition: this broker cannot use it"

    def __init__(self, code: int, remark: str | None, *, address: str = "", request: str = "") -> None:
        super().__init__(code, remark, address=address, request=request)
        self.can_retry = self.retriable = False
        if code == ResponseCode.SYSTEM_ERROR:
            self.next_step = "set enablePropertyFilter=true at the broker, or subscribe by tags"
        self.args = (sentences(self.args[0], self.next_step),)


class BrokerBusy(RequestFailed):
    """Refused because of load. Nothing was done; another broker, or this one later, may take it."""

    next_step = "send slower, or try again later"


class BrokerLeaving(RequestFailed):
    """The broker is stopping gracefully and sends its clients away. Nothing was done."""

    next_step = "another broker, or this one after its restart, takes the request"


class TopicUnknownAtBroker(RequestFailed):
    """The broker does not know the topic, though a route led here."""

    next_step = "create the topic at this broker, or wait for the routes to be refreshed"


class MessageRefused(RequestFailed):
    """The broker takes no such message: too large, too long delayed, or otherwise against its rules."""

    next_step = "look at the remark; the broker's limits are in its settings"


class StoredUnsafely(RequestFailed):
    """Stored, but not as safe as the broker was told to keep it; raised only to try elsewhere."""

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


# How brokers begin that filter by tags alone.
_NO_FILTER = "The broker does not support consumer to filter message"
_NO_RIGHT = "has no permission to access"  # a user who is known
_NO_RECALL = "recall failed, operation is forbidden"
# How brokers begin when it is not the keys.
_SETTINGS = ("the broker[", "the topic[", "the consumer group[", "subscription group no permission")


def failure(answer: Command, *, address: str, code: int) -> RequestFailed:
    """The error for an answer with an error code."""
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
    """4.x answers a wrong signature with SYSTEM_ERROR and the name of its exception."""
    return code == ResponseCode.NO_PERMISSION or (
        code == ResponseCode.SYSTEM_ERROR and "AclException" in (remark or "")
    )


# --- reading ----------------------------------------------------------------------------------------


class OffsetGone(KeroloxError):
    """The messages asked for are not there any more, or not there yet."""

    def __init__(self, queue: Queue, asked: int, first: int, end: int) -> None:
        self.queue, self.asked, self.first, self.end = queue, asked, first, end
        super().__init__(
            f"queue {queue.topic}/{queue.broker}/{queue.queue_id} has offsets {first} to {end}, not {asked}"
        )


class FollowerLacks(OffsetGone):
    """A follower does not have the messages asked for, and nobody else of its name can be asked."""

    retriable = True
    next_step = "start the leader again; what no follower has is lost if it does not come back"

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
    """No broker took the message in time. ``tried`` says which were asked and what each said.

    ``may_be_stored``: an answer was lost on the way, so one of them may have the message all the same.
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
                "it may have been stored all the same: send it again only if a second copy does no harm"
            )
        steps = "; ".join(f"{broker}: {error}" for broker, error in self.tried) or "nobody could be asked"
        super().__init__(
            sentences(
                f"message to topic {topic!r} not sent after {elapsed_s:.2f} s and {len(self.tried)} "
                f"{'try' if len(self.tried) == 1 else 'tries'} ({why}): {steps}",
                f"next: {self.next_step}",
            )
        )


class SomeFailed(KeroloxError):
    """Of many messages some were not sent. ``results`` has a receipt or an error for each, in order."""

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
