"""Outgoing messages: checked, packed, compressed, and framed.

Almost all header fields of send requests to one queue are constant, so the header is a template built once
per queue, and so is most of the signed content.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from kerolox.client.calls.signing import FrameSigner
from kerolox.client.errors import InvalidMessage
from kerolox.client.messages import Message, Queue, Receipt, SendStatus
from kerolox.protocol.codes import VERSION, RequestCode
from kerolox.protocol.command import Command, request
from kerolox.protocol.compression import compress
from kerolox.protocol.flags import COMPRESSED
from kerolox.protocol.frame import JSON
from kerolox.protocol.headers.send import SendAnswer, SendRequestV2
from kerolox.protocol.limits import PROPERTIES_BYTES_MAX
from kerolox.protocol.reserved import RETRY_PREFIX, TEMPLATE_TOPIC

_quote = msgspec.json.encode
_STATUS = {int(status): status for status in SendStatus}
_pack_prefix = struct.Struct(">iI").pack  # as frame.pack_prefix, for JSON headers
_FLAG_AND_PROPERTIES = b'","h":"%d","i":'
_NO_FLAG_AND_PROPERTIES = _FLAG_AND_PROPERTIES % 0
TEMPLATES_MAX = 64
ITEM_OVERHEAD_BYTES = 22  # of a message in a batch, without its body and properties


class Outgoing(msgspec.Struct, gc=False):
    """Send request: a message or a batch."""

    topic: str
    body: bytes
    properties: str
    unique_key: str
    born_ms: int
    flag: int = 0
    sys_flag: int = 0
    code: int = RequestCode.SEND_MESSAGE_V2
    message: Message | None = None
    items: Sequence[Outgoing] = ()  # of a batch
    reconsume_times: int = 0  # of a message sent back for a retry
    max_reconsume_times: int | None = None

    @property
    def item_bytes(self) -> int:
        """Return the bytes that the message adds to a batch."""
        properties = self.properties
        size = len(properties) if properties.isascii() else len(properties.encode())
        return ITEM_OVERHEAD_BYTES + len(self.body) + size


def shrink(outgoing: Outgoing, kind: int, level: int) -> None:
    """Compress the body if that reduces its size."""
    smaller = compress(outgoing.body, kind, level)
    if len(smaller) < len(outgoing.body):
        outgoing.body = smaller
        outgoing.sys_flag |= COMPRESSED | kind


def check_properties(properties: str) -> None:
    """Raise InvalidMessage if the properties exceed the limit of a record."""
    size = len(properties.encode())
    if size > PROPERTIES_BYTES_MAX:
        raise InvalidMessage(f"the properties have {size} bytes; the limit is {PROPERTIES_BYTES_MAX}")


class SendCommand(Command):
    """Request with a prepared frame, signed if required."""

    __slots__ = ("frame",)

    frame: bytes

    def encode(self) -> bytes:
        return self.frame


class SendTemplate(NamedTuple):
    """Constant parts of requests to one queue."""

    head: bytes  # before the born time
    middle: bytes  # behind the properties, up to the signature or the opaque
    behind: bytes  # behind the signature, up to the opaque
    tail: bytes  # behind the opaque
    fixed_bytes: int  # length of these parts and of the text between born time and properties
    signed_head: bytes  # signed content before the born time; signed_tail: after the properties
    signed_tail: bytes


class Target:
    """Queue to send to, with its broker address and frame templates."""

    __slots__ = (
        "_templates",
        "address",
        "group",
        "queue",
        "shown_queue",
        "template_queues",
        "template_topic",
        "unit_mode",
    )

    def __init__(
        self,
        queue: Queue,
        address: str,
        group: str,
        *,
        shown_topic: str | None = None,
        unit_mode: bool = False,
        template_topic: str = TEMPLATE_TOPIC,
        template_queues: int = 4,
    ) -> None:
        self.queue = queue
        self.shown_queue = queue if shown_topic is None else queue._replace(topic=shown_topic)
        self.address = address
        self.group = group
        self.unit_mode = unit_mode
        self.template_topic = template_topic
        self.template_queues = template_queues
        self._templates: dict[tuple[int, int, int, bool], SendTemplate] = {}

    def header(self, outgoing: Outgoing) -> SendRequestV2:
        return SendRequestV2(
            producer_group=self.group,
            topic=outgoing.topic,
            default_topic=self.template_topic,
            default_topic_queue_nums=self.template_queues,
            queue_id=self.queue.queue_id,
            sys_flag=outgoing.sys_flag,
            born_timestamp=outgoing.born_ms,
            flag=outgoing.flag,
            properties=outgoing.properties,
            reconsume_times=outgoing.reconsume_times,
            unit_mode=self.unit_mode,
            max_reconsume_times=outgoing.max_reconsume_times,
            batch=outgoing.code == RequestCode.SEND_BATCH_MESSAGE,
            broker_name=self.queue.broker,
        )

    def command(
        self,
        outgoing: Outgoing,
        opaque: int,
        encoding: int,
        *,
        from_template: bool,
        signer: FrameSigner | None = None,
    ) -> Command:
        """Return the request.

        ``from_template``: no hook needs its fields, so ``signer`` signs it.
        """
        if not from_template or encoding != JSON or outgoing.topic.startswith(RETRY_PREFIX):
            return request(
                outgoing.code, self.header(outgoing), outgoing.body, opaque=opaque, encoding=encoding
            )
        key = (outgoing.code, outgoing.sys_flag, outgoing.flag, signer is not None)
        parts = self._templates.get(key)
        if parts is None:
            if len(self._templates) > TEMPLATES_MAX:
                self._templates.clear()
            parts = self._templates[key] = self._make_template(outgoing, signer)
        head, middle, behind, tail, fixed_bytes, signed_head, signed_tail = parts
        born, properties, number = b"%d" % outgoing.born_ms, _quote(outgoing.properties), b"%d" % opaque
        body = outgoing.body
        signature = b""
        if signer is not None:
            signature = signer.signature(
                signed_head,
                b"%d%d" % (outgoing.born_ms, outgoing.flag),
                outgoing.properties.encode("utf-8", "replace"),
                signed_tail,
                body,
            )
        header_bytes = fixed_bytes + len(born) + len(properties) + len(number)
        command = SendCommand.__new__(SendCommand)
        command.code = outgoing.code
        command.opaque = opaque
        command.frame = b"".join(
            (
                _pack_prefix(4 + header_bytes + len(body), header_bytes),
                head,
                born,
                _FLAG_AND_PROPERTIES % outgoing.flag if outgoing.flag else _NO_FLAG_AND_PROPERTIES,
                properties,
                middle,
                signature,
                behind,
                number,
                tail,
                body,
            )
        )
        return command

    def _make_template(self, outgoing: Outgoing, signer: FrameSigner | None) -> SendTemplate:
        code, sys_flag = outgoing.code, outgoing.sys_flag
        before = (
            self.group, self.queue.topic, self.template_topic,
            str(self.template_queues), str(self.queue.queue_id), str(sys_flag),
        )  # fmt: skip
        after = {
            "j": "0",
            "k": "true" if self.unit_mode else "false",
            "m": "true" if code == RequestCode.SEND_BATCH_MESSAGE else "false",
            "n": self.queue.broker,
        }
        first = _quote(dict(zip("abcdef", before, strict=True)))[:-1]
        head = b'{"code":%d,"extFields":%b,"g":"' % (code, first)
        middle = b"," + _quote(after)[1:-1]
        behind = b'},"flag":0,"language":"PYTHON","opaque":'
        signed_head = signed_tail = b""
        signature_bytes = 0
        if signer is not None:
            middle += signer.fields
            behind = b'"' + behind
            signed_head = signer.text + "".join(before).encode("utf-8", "replace")
            signed_tail = "".join(after.values()).encode("utf-8", "replace")
            signature_bytes = signer.SIGNATURE_BYTES
        tail = b',"serializeTypeCurrentRPC":"JSON","version":%d}' % VERSION
        between = len(_FLAG_AND_PROPERTIES % outgoing.flag)
        fixed_bytes = len(head) + between + len(middle) + signature_bytes + len(behind) + len(tail)
        return SendTemplate(head, middle, behind, tail, fixed_bytes, signed_head, signed_tail)

    def receipt(self, answer: Command, outgoing: Outgoing) -> Receipt:
        """Return the receipt of a stored message; for a batch, that of its first message."""
        header = answer.header(SendAnswer)
        queue = self.shown_queue
        if header.queue_id != queue.queue_id:
            queue = Queue(queue.topic, queue.broker, header.queue_id)
        return Receipt(
            _STATUS[answer.code],
            outgoing.unique_key,
            header.msg_id,
            queue,
            header.queue_offset,
            header.transaction_id,
            header.recall_handle,
            header.region_id or "DefaultRegion",
            header.trace_on is not False,
        )

    def __repr__(self) -> str:
        return f"<target {self.queue} at {self.address}>"
