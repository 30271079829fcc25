"""Sending of messages without an event loop: many requests in flight.

``send`` returns when the request is in flight and ``finish`` when all are stored; both raise
:class:`NotAllSent` after requests that finally failed. Sockets never block: while a broker does not read, its
answers are read, so that neither side waits for the other for ever. ``calls/send_attempts.py`` decides
retries.

A request for one queue is sent only to that queue, after the answer to the previous one for it: a broker
processes several requests of one connection at a time, and may change their order.

If an answer is lost, the messages may be stored. The sender sends them again, and readers may get them twice,
unless it has a function that finds the missing ones in the queue (``find_missing``).
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable, Sequence
from typing import Self

from kerolox.client.calls.health import BrokerHealth
from kerolox.client.calls.outgoing import Target
from kerolox.client.calls.send_attempts import RouteStep, SendAttempt
from kerolox.client.calls.sends import was_mistaken
from kerolox.client.errors import InvalidMessage, failure
from kerolox.client.messages import Queue
from kerolox.client.sockets.lines import Parcel, Sending, SendLine
from kerolox.client.sockets.socket_cluster import SocketCluster
from kerolox.client.sockets.targets import Targets
from kerolox.clock import SYSTEM_CLOCK
from kerolox.errors import ConnectFailed, KeroloxError, RequestTimeout
from kerolox.protocol.codes import STORED_CODES, ResponseCode, request_name
from kerolox.protocol.command import Command
from kerolox.protocol.reserved import TEMPLATE_TOPIC

IN_FLIGHT = 4  # requests on a connection that wait for answers
RETRIES = 5  # further tries after an answer that was an error, or none
GIVE_UP_S = 120.0
ROOM_S = 0.01  # how often a connection with too many requests is looked at
WAIT_S = 1.0  # at most, before deadlines are looked at again

# Returns the part of a request, whose response was lost, that is missing in its queue; None if nothing is.
FindMissing = Callable[[Parcel, Queue], Parcel | None]


class NotAllSent(KeroloxError):
    """Some messages were not sent, or their outcome is unknown. ``lost``: the requests with their errors."""

    retriable = True

    def __init__(self, lost: Sequence[tuple[Parcel, KeroloxError]], stored: int) -> None:
        self.lost = tuple(lost)
        self.stored = stored
        self.count = sum(parcel.count for parcel, _ in lost)
        self.may_be_stored = sum(
            parcel.count for parcel, error in lost if getattr(error, "may_be_stored", False)
        )
        self.retriable = all(error.retriable for _, error in lost)
        topics = ", ".join(sorted({repr(parcel.topic) for parcel, _ in lost}))
        doubt = f", {self.may_be_stored} of which may be stored anyway" if self.may_be_stored else ""
        super().__init__(
            f"{self.count} messages in {len(lost)} requests to {topics} were not sent{doubt}; {stored} were "
            f"stored before. The first error: {lost[0][1]}"
        )


class SocketSender:
    """Sends for one producer group. Not for several threads at once."""

    def __init__(
        self,
        cluster: SocketCluster,
        group: str,
        *,
        in_flight: int = IN_FLIGHT,
        retries: int = RETRIES,
        give_up_s: float = GIVE_UP_S,
        template_topic: str = TEMPLATE_TOPIC,
        find_missing: FindMissing | None = None,
        check: Callable[[], None] | None = None,
    ) -> None:
        """``check`` is called before each attempt and every second; an error that it raises ends the call."""
        self.cluster = cluster
        self.group = group
        self.stored = 0  # messages
        self._finished = 0  # of them, when all were stored that had been sent
        self.stored_bytes = 0
        self.requests = 0
        self.repeated = 0  # requests sent again after an answer was lost
        self.find_missing = find_missing
        self._check_caller = check
        self._in_flight = in_flight
        self._retries = retries
        self._give_up_s = give_up_s
        self._targets = Targets(cluster, group, template_topic)
        self._health = BrokerHealth(SYSTEM_CLOCK)
        self._selector = selectors.DefaultSelector()
        self._lines: dict[str, SendLine] = {}
        self._open = 0  # requests neither stored nor lost
        self._later: list[Sending] = []  # to be tried again
        self._busy: set[Queue] = set()  # with a request that was to go there
        self._lost: list[tuple[Parcel, KeroloxError]] = []

    def close(self) -> None:
        """Drop the connections. What is under way may be stored or not."""
        for line in list(self._lines.values()):
            self._forget(line)
        self._selector.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # --- sending --------------------------------------------------------------------------------------

    def send(self, parcel: Parcel, queue: Queue | None = None) -> None:
        """Send a request to a queue, or to any; waits only while too many are under way."""
        self._check()
        if queue is not None:
            self._check_queue(queue)
            while queue in self._busy:
                self._step()
            self._busy.add(queue)
        self._open += 1
        sending = Sending(parcel, queue, time.monotonic())
        target = self._choose(sending)
        while not self._has_room(target):
            self._step()
            target = self._choose(sending)
        self._begin(sending, target)
        self._check()

    def queues(self, topic: str) -> Sequence[Queue]:
        """The queues of a topic that can be written, in the order hashes count in; of a topic that does not
        exist those it is going to have. Raises a kind of NoRoute."""
        return self._targets.queues(topic)

    def is_assumed(self, topic: str) -> bool:
        """Return True if the topic does not exist yet; the first message creates it."""
        return self._targets.is_assumed(topic)

    def _check_queue(self, queue: Queue) -> None:
        if self._targets.get(queue) is None:
            known = ", ".join(f"{each.broker}:{each.queue_id}" for each in self.queues(queue.topic))
            raise InvalidMessage(
                f"queue {queue.queue_id} of broker {queue.broker!r} is not a writable queue of topic "
                f"{queue.topic!r}. Writable: {known}"
            )

    def finish(self) -> None:
        """Wait until all are stored. Raises NotAllSent."""
        while self._open:
            self._step()
        self._check()
        self._finished = self.stored

    def _check(self) -> None:
        if self._lost:
            while self._open:
                self._step()
            lost, self._lost = self._lost, []
            before, self._finished = self._finished, self.stored
            raise NotAllSent(lost, self.stored - before)

    def _has_room(self, target: Target) -> bool:
        line = self._lines.get(target.address)
        return line is None or len(line.waiting) < self._in_flight

    def _begin(self, sending: Sending, target: Target) -> None:
        """Send a request to a queue."""
        if self._check_caller is not None:
            self._check_caller()
        sending.target = target
        now_s = time.monotonic()
        end_s = sending.began_s + self._give_up_s
        # With ``find_missing`` a second copy is avoided, so the response is awaited before a retry.
        sending.deadline_s = (
            end_s if self.find_missing else min(end_s, now_s + self.cluster.options.request_timeout_s)
        )
        line = None
        try:
            line = self._line(target.address)
            self.requests += 1
            line.put(sending, target)
            self._watch(line)
        except ConnectFailed as error:
            self._failed(sending, error)
        except KeroloxError as error:
            if line is None:
                self._failed(sending, error)
            else:
                self._break(line, error)

    def _choose(self, sending: Sending) -> Target:
        """Its queue, or the next one whose broker is well and has room."""
        if sending.queue is not None:
            known = self._targets.get(sending.queue) or sending.target
            assert known is not None, "a queue is looked for before anything is sent to it"
            return known
        tried = () if sending.attempt is None else sending.attempt.brokers
        return self._targets.of(sending.parcel.topic).next(tried, self._health, self._has_room)

    # --- connections ----------------------------------------------------------------------------------

    def _line(self, address: str) -> SendLine:
        line = self._lines.get(address)
        if line is not None and not line.waiting:
            try:
                for _ in line.pull():  # a broker closes a connection nobody used for two minutes
                    pass
            except KeroloxError:
                self._forget(line)
                line = None
        if line is None:
            line = SendLine(address, self.cluster.options)
            self._lines[address] = line
            self._selector.register(line, selectors.EVENT_READ, line)
        return line

    def _watch(self, line: SendLine) -> None:
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if line.has_more else 0)
        if self._selector.get_key(line).events != wanted:
            self._selector.modify(line, wanted, line)

    def _forget(self, line: SendLine) -> None:
        if self._lines.get(line.address) is line:
            del self._lines[line.address]
            self._selector.unregister(line)
            line.close()

    def _break(self, line: SendLine, error: KeroloxError) -> None:
        """The connection is gone, and with it the answers to all that waited there."""
        self._forget(line)
        waiting, line.waiting = list(line.waiting.values()), {}
        for sending in waiting:
            self._failed(sending, error if sending.is_begun else ConnectFailed(line.address, error))

    def _step(self) -> None:
        """Wait for the next event, for a second at most, and process it."""
        if self._check_caller is not None:
            self._check_caller()
        now_s = time.monotonic()
        until_s = now_s + WAIT_S
        due = [sending for sending in self._later if sending.not_before_s <= now_s]
        for sending in due:
            self._later.remove(sending)
            self._again(sending)
        for sending in self._later:
            until_s = min(until_s, sending.not_before_s)
        for line in self._lines.values():
            for sending in line.waiting.values():
                until_s = min(until_s, sending.deadline_s)
        if not self._open:
            return
        for key, events in self._selector.select(max(0.0, until_s - now_s)):
            line = key.data
            try:
                if events & selectors.EVENT_READ:
                    for sending, answer in line.pull():
                        self._answered(sending, answer)
                if events & selectors.EVENT_WRITE:
                    line.push()
                    self._watch(line)
            except KeroloxError as error:
                self._break(line, error)
        now_s = time.monotonic()
        for line in list(self._lines.values()):
            for sending in line.overdue(now_s):
                took_s = now_s - sending.began_s
                if sending.is_begun:
                    name = request_name(sending.parcel.code)
                    self._failed(sending, RequestTimeout(line.address, name, took_s))
                else:
                    self._failed(sending, ConnectFailed(line.address, "it takes no more requests"))

    # --- answers --------------------------------------------------------------------------------------

    def _answered(self, sending: Sending, answer: Command) -> None:
        target = sending.target
        assert target is not None
        if answer.code in STORED_CODES:
            self.stored += sending.parcel.count
            self.stored_bytes += sending.parcel.size_bytes
            if not self._health.all_well:
                self._health.answered(target.queue.broker, 0.0)
            self._done(sending)
            return
        if answer.code == ResponseCode.GO_AWAY and target.address in self._lines:
            line = self._lines[target.address]
            if not line.waiting:
                self._forget(line)
        self._failed(sending, failure(answer, address=target.address, code=sending.parcel.code))

    def _done(self, sending: Sending) -> None:
        self._open -= 1
        if sending.queue is not None:
            self._busy.discard(sending.queue)

    def _failed(self, sending: Sending, error: KeroloxError) -> None:
        """Record a failure, and carry out the next step."""
        target = sending.target
        assert target is not None
        topic, broker = sending.parcel.topic, target.queue.broker
        now_s = time.monotonic()
        publishing = self._targets.of(topic)
        is_for_queue = sending.queue is not None
        attempt = sending.attempt or SendAttempt(topic, self._retries, self._give_up_s, sending.began_s)
        step = attempt.failed(
            broker,
            error,
            now_s,
            mistaken=not is_for_queue and was_mistaken(publishing, target, error),
            is_assumed=publishing.route.assumed,
        )
        sending.attempt = step.attempt
        if step.avoid_broker:
            self._health.failed(broker)
        if step.route is not RouteStep.KEEP:
            self._targets.refresh(topic, at_once=step.route is RouteStep.FORGET)
        if step.maybe_stored:
            sending.maybe_stored_in = target.queue
        if step.error is not None:
            self._lose(sending, step.error)
            return
        brokers = (broker,) if is_for_queue else publishing.brokers
        sending.not_before_s = now_s + step.attempt.pause_s(brokers, now_s)
        self._later.append(sending)

    def _again(self, sending: Sending) -> None:
        """Carry out the next attempt of a request."""
        target = self._choose(sending)
        if not self._has_room(target):
            sending.not_before_s = time.monotonic() + ROOM_S
            self._later.append(sending)
            return
        queue, sending.maybe_stored_in = sending.maybe_stored_in, None
        if queue is not None and self.find_missing is not None:
            try:
                rest = self.find_missing(sending.parcel, queue)
            except KeroloxError as error:
                assert sending.attempt is not None
                attempt = sending.attempt.and_tried(queue.broker, error)
                why = "the stored messages could not be determined"
                self._lose(sending, attempt.given_up(time.monotonic(), why))
                return
            self.stored += sending.parcel.count - (0 if rest is None else rest.count)
            if rest is None:
                self._done(sending)
                return
            sending.parcel = rest
        elif queue is not None:
            self.repeated += 1
        self._begin(sending, target)

    def _lose(self, sending: Sending, error: KeroloxError) -> None:
        self._lost.append((sending.parcel, error))
        self._done(sending)
