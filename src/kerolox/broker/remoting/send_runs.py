"""Runs of plain sends: many send requests taken at once, without objects for requests and answers.

:mod:`kerolox.broker.produce.sends` could handle all of them. It handles every send that is not plain: a new
topic, a queue to be chosen, a transaction, a broker that accepts no messages now. Both append to the same log
in the order in which the frames arrived. Delayed messages are also taken in runs, and parked.

Runs bypass the guard of the handlers, so they do its work. If requests must be signed, a run belongs to one
user; the signature under each frame is verified while the frame is taken; and its topics are those to which
the guard allows this user to send from this address.
"""

from __future__ import annotations

from typing import NamedTuple

from kerolox.broker.base import Base
from kerolox.broker.figures.meters import SHARDING_KEY, Meters
from kerolox.broker.later.delays import Delays
from kerolox.broker.later.timer_sends import TimerSends
from kerolox.broker.remoting.signers import Signers
from kerolox.broker.write.admission import LIGHT_QUEUES, STOPS
from kerolox.broker.write.pending_message import PendingMessage
from kerolox.broker.write.room import WritePath
from kerolox.broker.write.targets import Sender
from kerolox.errors import InvalidRequest, KeroloxError, ProtocolError
from kerolox.front.lanes import Lane
from kerolox.front.refusals import Refusal
from kerolox.front.requests import Answer, Request
from kerolox.net.handlers import RemotingHandlers
from kerolox.net.peer import Peer
from kerolox.observers import Observers
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import Command, decode_command
from kerolox.protocol.frame import BINARY, JSON, Frame, pack_prefix
from kerolox.protocol.headers.send import SendRequestV2
from kerolox.protocol.hosts import host_bytes
from kerolox.protocol.plain_sends import PLAIN_STARTS, ParkedSend
from kerolox.protocol.record_scan import TOPIC
from kerolox.protocol.reserved import SCHEDULE_TOPIC
from kerolox.protocol.signature import Signer
from kerolox.store.log.safe import Safe

_SCHEDULE = SCHEDULE_TOPIC.encode()
_JSON_SUCCESS = b'{"code":0'
_LEFT = (b"TRAN_MSG", b"POP_CK")  # properties that need a handler, even with a delay
_PORT_BYTES = 4  # of the port, at the end of a host
_PREFIX_BYTES = 8  # of a frame: its length, and the length of its header


class TakenRun(NamedTuple):
    """Sends that were taken by one call and wait for the write."""

    peer: Peer
    frames: list[Frame]
    first: int  # the index of its first frame
    length: int  # number of frames
    answers: bytes
    received_s: float


class SendRuns:
    """Handler of runs of sends, before they become requests."""

    def __init__(
        self,
        base: Base,
        path: WritePath,
        delays: Delays,
        timer_sends: TimerSends,
        meters: Meters | None,
    ) -> None:
        """``meters``: None while the metrics are not exported."""
        self._guard = base.guard
        self._signers = Signers(base.guard)
        self._intake = path.intake
        self._admission = path.admission
        self._targets = path.targets
        self._delays = delays
        self._timer_sends = timer_sends
        # For statistics: topic, messages, bytes, requests.
        self.on_stored: Observers[[str, int, int, int]] = Observers("run stored")
        self._meters = meters
        self._runs: list[TakenRun] = []
        options, rules = base.options, path.admission.rules
        self._left = (*_LEFT, LIGHT_QUEUES) if LIGHT_QUEUES in rules.stops else _LEFT
        # False if every message needs something that is not plain.
        self._possible = (
            not options.record_crc
            and not options.multi_dispatch
            and not options.ledger  # records of a run are contiguous
            and not any(word in rules.added for word in STOPS)
        )

    def add_to(self, handlers: RemotingHandlers, lane: Lane) -> None:
        """Take runs from now on."""
        if handlers.guard is not self._guard:
            raise ValueError("runs would bypass the guard of these handlers: they use another guard")
        if self._possible:
            for start in PLAIN_STARTS:
                handlers.add_run(start, self.take, lane)

    def take(self, peer: Peer, frames: list[Frame], at: int) -> int | Command:
        """Take the plain sends of one topic, beginning at frame ``at``. Return how many were taken, or the
        command of the frame if it was decoded and not taken."""
        # A match in the header is nearly always a property.
        header = frames[at][1]
        if b"TRAN_MSG" in header or not self._admission.takes_runs:
            return 0
        if b"DELAY" in header or b"TIMER_" in header:
            self._intake.renew_time()  # the delay counts from now
        born_host: bytes | None = peer.data.get("born_host")
        if born_host is None:
            born_host = peer.data["born_host"] = host_bytes(peer.address)
        signer: Signer | None = None
        sender: Sender = None
        if self._guard.wants_signatures:
            signer = self._signers.of(peer)
            if signer is None:
                return 0
            sender = signer.access_key, born_host[:-_PORT_BYTES]
        rules, park = self._admission.rules, self._park
        append = self._intake.append_sends
        taken = append(frames, at, self._targets.of(sender), rules, park, born_host, signer)
        if taken is None:
            command = _decoded(frames[at])
            if command is None:
                return 0
            if not self._learn(peer, sender, command):
                return command
            taken = append(frames, at, self._targets.of(sender), rules, park, born_host, signer)
            if taken is None:
                return command
        count, records, entries, answers, queues, messages = taken
        if entries[0][TOPIC] == _SCHEDULE:
            self._delays.parked(queues)
        topic = entries[0][TOPIC].decode()
        self.on_stored.tell(topic, messages, len(records), count)
        if not self._runs:
            self._intake.soon(self._written)
        if self._meters is not None:
            self._meters.sent_run(topic, SHARDING_KEY in header, entries)
        self._runs.append(TakenRun(peer, frames, at, count, answers, peer.active_s))
        return count

    # --- decisions -----------------------------------------------------------------------------------

    def _learn(self, peer: Peer, sender: Sender, command: Command) -> bool:
        """Add the topic and queue of a send to the targets, if the sender may send there. Return whether they
        are new. The frame is not verified yet, and this does not verify it."""
        if command.code not in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE):
            return False
        try:
            header = command.header(SendRequestV2)
        except InvalidRequest:
            return False
        identity = None if sender is None else sender[0].decode()
        if not self._guard.may_send(identity, peer, header.topic):
            return False
        return self._targets.learn(sender, header.topic, header.queue_id)

    def _park(self, topic: bytes, queue_id: int, properties: bytes) -> ParkedSend | None:
        """Return the queue in which a delayed message is parked. None for a message without a delay, or with
        other properties that need a handler."""
        if any(word in properties for word in self._left):
            return None
        name = topic.decode()
        pending = PendingMessage(name, queue_id, b"", properties, 0, b"")
        try:
            if not self._delays.rewrite(pending):
                self._timer_sends.park(pending)
            if pending.topic == name:
                return None
            cursor = self._intake.cursor(pending.topic, pending.queue_id)
        except KeroloxError:
            return None  # the handlers report the reason
        handle = (pending.recall_handle or "").encode()
        return cursor.topic_name, cursor.field, cursor.queue_id, cursor, pending.properties, handle

    # --- answers -------------------------------------------------------------------------------------

    def _written(self, failed: KeroloxError | None) -> None:
        runs, self._runs = self._runs, []
        if failed is not None:
            for run in runs:
                refuse(run, Refusal.of(failed).answer())
        else:
            self._intake.when_safe(lambda how: self._safe(runs, how))

    def _answer(self, run: TakenRun, code: int) -> None:
        answers = run.answers
        run.peer.write_answers(answers if code == ResponseCode.SUCCESS else with_code(answers, code))
        if self._meters is not None:
            asked = code_of(run.frames[run.first][1])
            self._meters.answered_run(asked, run.received_s, run.length, code)

    def _safe(self, runs: list[TakenRun], how: Safe) -> None:
        for run in runs:
            if how.failed:
                refuse(run, Refusal(how.name.lower(), how.code, how.words).answer())
            else:  # stored, but maybe less safe than promised
                self._answer(run, how.code)


def _decoded(frame: Frame) -> Command | None:
    try:
        return decode_command(*frame, is_strict=True)
    except ProtocolError:
        return None  # the peer reports the reason


def refuse(run: TakenRun, answer: Answer) -> None:
    """Send the same answer to all requests of a run."""
    peer = run.peer
    for frame in run.frames[run.first : run.first + run.length]:
        command = decode_command(*frame)
        peer.answer(Request(peer, command.code, None, command.body, 0.0, command), answer)


def code_of(header: bytes) -> int:
    """Return the request code of a plain send. All headers of plain sends begin with it."""
    return int(header[8:11]) if header[:1] == b"{" else int.from_bytes(header[:2])


def with_code(answers: bytes, code: int) -> bytes:
    """Return answers of success without bodies, with another response code. Headers begin with the code, so
    the answers need not be decoded: a leader without followers answers all its sends this way."""
    json_start, binary_start = b'{"code":%d' % code, code.to_bytes(2)
    parts: list[bytes] = []
    at = 0
    while at < len(answers):
        head = at + _PREFIX_BYTES
        end = at + 4 + int.from_bytes(answers[at : at + 4])
        if answers[at + 4] == BINARY:
            parts += (answers[at:head], binary_start, answers[head + 2 : end])
        else:
            rest = answers[head + len(_JSON_SUCCESS) : end]
            parts += (pack_prefix(JSON, len(json_start) + len(rest), 0), json_start, rest)
        at = end
    return b"".join(parts)
