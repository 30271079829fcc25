"""Fast path for plain sends: from frames to records, queue entries and answers in one call.

Nearly all messages are plain: sent with one-letter fields, to a known queue, with a unique key, without
transaction. A run of such frames needs no objects for its requests and answers. For a delayed message
``Park`` returns the queue where it waits. If senders must sign, a run has one signer: every frame has that
access key, and its signature is verified. All other frames are left to the handlers, which check everything
again: taking fewer frames than possible is never wrong. So a frame with an unknown field is left to them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

from kerolox.compiled import compiled
from kerolox.errors import InvalidRequest, ProtocolError
from kerolox.protocol import properties as names
from kerolox.protocol.batch import split_batch
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import ANSWER, ONE_WAY, Command, decode_command, encode_answer
from kerolox.protocol.frame import Frame
from kerolox.protocol.headers.send import SendAnswer, SendRequestV2
from kerolox.protocol.limits import PROPERTIES_BYTES_MAX
from kerolox.protocol.record import encode_record
from kerolox.protocol.record_scan import Entry
from kerolox.protocol.send_rules import SendRules
from kerolox.protocol.signature import ACCESS_KEY, SECURITY_TOKEN, SIGNATURE, Signer

_SIMPLE = re.compile(rb"[0-9A-Za-z_-]+")  # a unique key that needs no escapes
QUEUES_MAX: Final = 64  # queues in one run
BLANK_BYTES: Final = 8
SYS_FLAGS_PLAIN: Final = 0x703  # compressed, many tags, which compression: nothing that changes the way

# How the headers begin that may be plain, JSON and binary.
PLAIN_STARTS: Final = (
    b'{"code":310,',
    b'{"code":320,',
    RequestCode.SEND_MESSAGE_V2.to_bytes(2),
    RequestCode.SEND_BATCH_MESSAGE.to_bytes(2),
)

# The fields of a frame that is taken. Java's clients send a to m, since 5.0 also n (the broker's name), and
# the three of a signature if they have an access key. With any other field the frame is left to the handlers:
# - ns, nsd (namespaces of 5.x): no open broker reads them, but one who does must not find them passed over;
# - __ZONE_NAME, __ZONE_MODE: they are added after signing, and only who verifies makes allowance for that;
# - ReqT (streams), bname, oway, lo: Java's headers could carry them, no client writes them into a plain send;
# - long names, of C++ and of Go's single sends: they belong to code 10.
KNOWN_FIELDS: Final = frozenset("abcdefghijklmn") | {ACCESS_KEY, SECURITY_TOKEN, SIGNATURE}


# Of a topic: its name as bytes, its field in records, and the queues messages may go to, by their number. A
# queue is anything with a next_offset.
SendTarget: TypeAlias = "tuple[bytes, bytes, dict[int, Any]]"


# Storage of a delayed message: topic as bytes, its field in records, number of the queue, the queue, the
# message's properties there, and the handle to recall it (may be empty).
ParkedSend: TypeAlias = "tuple[bytes, bytes, int, Any, bytes, bytes]"
# Called with topic, queue and properties; None leaves the frame to the handlers. Must not change anything.
Park = Callable[[bytes, int, bytes], "ParkedSend | None"]


class Taken(NamedTuple):
    """The result of a run of frames."""

    frames: int  # number of frames taken
    records: bytes
    entries: list[Entry]
    answers: bytes  # one frame for each request that wants one
    queues: list[tuple[Any, int]]  # the queues that got messages, and their next offset before
    messages: int


def _take_sends(
    frames: list[Frame],
    at: int,
    targets: dict[bytes, SendTarget],
    rules: SendRules,
    park: Park | None,
    born_host: bytes,
    end: int,
    file_end: int,
    now_ms: int,
    signer: Signer | None,
) -> Taken | None:
    """Take plain sends of one topic from ``frames[at:]``, as long as they come; None when the first is none.

    The records are placed from ``end`` on, up to ``file_end``, and the queues' ``next_offset`` is advanced.
    ``park`` is asked about messages with a word of ``rules.stops``. With a ``signer`` only frames with its
    signature are taken; without one, signatures are ignored.
    """
    run = _Run(targets, rules, park, born_host, end, file_end, now_ms, signer)
    count = 0
    while at + count < len(frames):  # those who are asked may let go of frames
        try:
            if not run.take(*frames[at + count]):
                break
        except (ProtocolError, InvalidRequest):
            break
        count += 1
    if not count:
        return None
    run.move_queues()
    return Taken(
        count,
        b"".join(run.records),
        run.entries,
        b"".join(run.answers),
        [(queue, first) for queue, (first, _) in run.queues.items()],
        len(run.entries),
    )


class _Run:
    def __init__(
        self,
        targets: dict[bytes, SendTarget],
        rules: SendRules,
        park: Park | None,
        born_host: bytes,
        end: int,
        file_end: int,
        now_ms: int,
        signer: Signer | None,
    ) -> None:
        self._targets = targets
        self._rules = rules
        self._park = park
        self._born_host = born_host
        self._end = end
        self._file_end = file_end
        self._now_ms = now_ms
        self._signer = signer
        self._target: SendTarget | None = None
        self._stored_name: bytes | None = None
        self.records: list[bytes] = []
        self.entries: list[Entry] = []
        self.answers: list[bytes] = []
        self.queues: dict[Any, tuple[int, int]] = {}  # first and next offset

    def take(self, encoding: int, header: bytes, body: bytes) -> bool:
        command = decode_command(encoding, header, body)
        batch = command.code == RequestCode.SEND_BATCH_MESSAGE
        if (not batch and command.code != RequestCode.SEND_MESSAGE_V2) or command.flag & ANSWER:
            return False
        fields = command.fields
        if not fields.keys() <= KNOWN_FIELDS:
            return False
        said = command.header(SendRequestV2)
        if said.queue_id < 0 or said.sys_flag & ~SYS_FLAGS_PLAIN or (said.batch and not batch):
            return False
        topic = said.topic.encode()
        target = self._targets.get(topic) if self._target is None else self._target
        if target is None or target[0] != topic:
            return False
        rules = self._rules
        properties = (said.properties or "").encode()
        unique = names.find(properties, names.AT_UNIQUE_KEY)
        if (
            (unique is None and not batch)  # a batch need not have a key of its own, and ours have none
            or (unique is not None and not _SIMPLE.fullmatch(unique))
            or (rules.wait_matters and names.find(properties, names.AT_WAIT) == b"false")
            or (self._signer is not None and not self._signer.has_signed(fields, body))
        ):
            return False
        if any(word in properties for word in rules.stops):
            if unique is None or batch:
                return False
            return self._take_later(command, said, target, names.append(properties, rules.added), unique)
        items = split_batch(body) if batch else [(said.flag, body, names.append(properties, rules.added))]
        beside = 74 + len(self._born_host) + len(rules.store_host) + len(target[1])
        total = sum([beside + len(content) + len(own) for _, content, own in items])
        queue = target[2].get(said.queue_id)
        if (
            not body
            or queue is None
            or any(len(own) > PROPERTIES_BYTES_MAX for _, _, own in items)
            or total > self._rules.body_bytes_max
            or self._end + total + BLANK_BYTES > self._file_end
            or (queue not in self.queues and len(self.queues) == QUEUES_MAX)
            or not self._goes_on(topic)
        ):
            return False
        self._put(command, said, items, (topic, target[1], said.queue_id), queue, unique)
        self._target = target
        return True

    def _take_later(
        self, command: Command, said: SendRequestV2, target: SendTarget, properties: bytes, unique: bytes
    ) -> bool:
        """A message that is to come later, or something else for others."""
        park = self._park
        if park is None or not command.body or said.queue_id not in target[2]:
            return False
        parked = park(target[0], said.queue_id, properties)
        if parked is None:
            return False
        topic, field, queue_id, queue, properties, handle = parked
        hosts = len(self._born_host) + len(self._rules.store_host)
        total = 74 + hosts + len(field) + len(command.body) + len(properties)
        if (
            len(properties) > PROPERTIES_BYTES_MAX
            or total > self._rules.body_bytes_max
            or self._end + total + BLANK_BYTES > self._file_end
            or (queue not in self.queues and len(self.queues) == QUEUES_MAX)
            or not self._goes_on(topic)
        ):
            return False
        items = [(said.flag, command.body, properties)]
        self._put(command, said, items, (topic, field, queue_id), queue, unique, handle.decode() or None)
        self._target = target
        return True

    def move_queues(self) -> None:
        """Tell the queues how far they have come; if one cannot be told, none was."""
        moved: list[tuple[Any, int]] = []
        try:
            for queue, (first, next_offset) in self.queues.items():
                queue.next_offset = next_offset
                moved.append((queue, first))
        except BaseException:
            for queue, first in moved:
                queue.next_offset = first
            raise

    def _goes_on(self, topic: bytes) -> bool:
        """All of a run are stored under one topic."""
        if self._stored_name is None:
            self._stored_name = topic
        return self._stored_name == topic

    def _put(
        self,
        command: Command,
        said: SendRequestV2,
        items: list[tuple[int, bytes, bytes]],
        where: tuple[bytes, bytes, int],
        queue: Any,
        unique: bytes | None,
        handle: str | None = None,
    ) -> None:
        rules = self._rules
        topic, field, queue_id = where
        first, offset = self.queues.get(queue, (queue.next_offset, queue.next_offset))
        begin = offset
        end = self._end
        records: list[bytes] = []
        entries: list[Entry] = []
        for flag, content, own in items:
            record = encode_record(
                queue_id,
                flag,
                offset,
                end,
                said.sys_flag,
                said.born_timestamp,
                self._born_host,
                self._now_ms,
                rules.store_host,
                said.reconsume_times or 0,
                0,
                content,
                field,
                own,
            )
            records.append(record)
            entries.append((len(record), 0, queue_id, offset, end, said.sys_flag, self._now_ms, topic, own))
            offset += 1
            end += len(record)
        # Nothing can fail any more.
        self._end = end
        self.queues[queue] = (first, offset)
        self.records += records
        self.entries += entries
        if command.flag & ONE_WAY:
            return
        prefix = rules.id_prefix.decode()
        answer = SendAnswer(
            msg_id=",".join([f"{prefix}{entry[4]:016X}" for entry in entries]),
            queue_id=said.queue_id,
            queue_offset=begin,
            transaction_id=None if unique is None else unique.decode(),
            region_id=rules.region_id,
            trace_on=rules.trace_on,
            recall_handle=handle,
        )
        self.answers.append(encode_answer(command.encoding, command.opaque, 0, answer))


take_sends = compiled("take_sends", _take_sends)
