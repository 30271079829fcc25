"""A broker's registration: its topics, as JSON or packed.

Packed is one zlib stream of, each with its 32-bit length before it: the data version, a count and so
many topic lines, the filter servers; and since 5.0 a count and so many queue mappings. The mapping
section is looked for by the version the broker says it has.
"""

from __future__ import annotations

import struct
import zlib

from kerolox.errors import ProtocolError
from kerolox.protocol.bodies.body import Body, from_tree
from kerolox.protocol.bodies.queue_mapping import QueueMapping
from kerolox.protocol.bodies.topics import DataVersion, TopicConfig, TopicConfigTable
from kerolox.protocol.codes import VERSION, VERSION_QUEUE_MAPPING, VERSION_REGISTER_BODY
from kerolox.protocol.json_dialect import dumps, loads
from kerolox.protocol.limits import FRAME_BYTES_MAX, INFLATED_BYTES_MAX

_INT = struct.Struct(">i")
_NODES_MAX = FRAME_BYTES_MAX  # large ones are read by a thread
_ZLIB_FIRST_BYTE = b"\x78"


class Registration(Body, frozen=True, kw_only=True):
    """Body of REGISTER_BROKER."""

    filter_server_list: tuple[str, ...] = ()
    topic_config_serialize_wrapper: TopicConfigTable = TopicConfigTable()


def body_crc32(data: bytes) -> int:
    """The ``bodyCrc32`` of a body as sent. 0 in the header means: do not check."""
    return zlib.crc32(data) & 0x7FFFFFFF


def encode_registration(
    registration: Registration, *, compressed: bool = False, version: int = VERSION
) -> bytes:
    """The body of REGISTER_BROKER for a name server that reads this version's form."""
    if not compressed:
        return registration.encode()
    table = registration.topic_config_serialize_wrapper
    new = version >= VERSION_QUEUE_MAPPING
    pieces = [_with_length(table.data_version.encode()), _INT.pack(len(table.topic_config_table))]
    pieces += [
        _with_length(topic.to_line(with_attributes=new).encode())
        for topic in table.topic_config_table.values()
    ]
    pieces.append(_with_length(dumps(registration.filter_server_list)))
    if new:
        mappings = table.topic_queue_mapping_info_map
        pieces.append(_INT.pack(len(mappings)))
        pieces += [_with_length(mapping.encode()) for mapping in mappings.values()]
    return zlib.compress(b"".join(pieces), 9)


def decode_registration(data: bytes, *, compressed: bool = False, version: int = VERSION) -> Registration:
    """The body of REGISTER_BROKER of a broker of this version.

    5.x brokers that compress say in the header that they do not, so the first byte decides as well:
    no JSON starts with ``x``.
    """
    if compressed or data[:1] == _ZLIB_FIRST_BYTE:
        return _unpack(_inflate(data), version)
    if version < VERSION_REGISTER_BODY:
        table = from_tree(loads(data), TopicConfigTable, _NODES_MAX)
        return Registration(topic_config_serialize_wrapper=table)
    return from_tree(loads(data), Registration, _NODES_MAX)


def _with_length(piece: bytes) -> bytes:
    return _INT.pack(len(piece)) + piece


def _inflate(data: bytes) -> bytes:
    try:
        inflated = zlib.decompressobj().decompress(data, INFLATED_BYTES_MAX + 1)
    except zlib.error as error:
        raise ProtocolError(f"compressed registration of {len(data)} bytes: {error}") from None
    if len(inflated) > INFLATED_BYTES_MAX:
        raise ProtocolError(
            f"compressed registration of {len(data)} bytes inflates to more than INFLATED_BYTES_MAX, "
            f"{INFLATED_BYTES_MAX}"
        )
    return inflated


def _unpack(data: bytes, version: int) -> Registration:
    reader = _Reader(data)
    data_version = DataVersion.decode(reader.piece("data version"))
    topics: dict[str, TopicConfig] = {}
    for _ in range(reader.number("topic count")):
        topic = TopicConfig.from_line(reader.piece("topic line").decode("utf-8", "replace"))
        topics[topic.topic_name] = topic
    servers = reader.piece("filter servers")
    try:
        filter_servers = from_tree(loads(servers), tuple[str, ...])
    except ProtocolError:
        filter_servers = ()  # Java logs this one and goes on
    mappings: dict[str, QueueMapping] = {}
    if version >= VERSION_QUEUE_MAPPING:
        for _ in range(reader.number("mapping count")):
            mapping = QueueMapping.decode(reader.piece("mapping"))
            mappings[mapping.topic or ""] = mapping
    return Registration(
        filter_server_list=filter_servers,
        topic_config_serialize_wrapper=TopicConfigTable(
            data_version=data_version,
            topic_config_table=topics,
            topic_queue_mapping_info_map=mappings,
        ),
    )


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def number(self, what: str) -> int:
        try:
            (number,) = _INT.unpack_from(self.data, self.position)
        except struct.error:
            raise ProtocolError(f"registration ends before its {what}", at=self.position) from None
        self.position += _INT.size
        return int(number)

    def piece(self, what: str) -> bytes:
        length = self.number(f"length of the {what}")
        end = self.position + length
        if length < 0 or end > len(self.data):
            raise ProtocolError(
                f"registration: {what} of {length} bytes, {len(self.data) - self.position} are left",
                at=self.position,
            )
        piece = self.data[self.position : end]
        self.position = end
        return piece
