"""Messages: outgoing, and as read back from a store."""

from __future__ import annotations

import msgspec

from kerolox.errors import InvalidRequest
from kerolox.protocol import properties as names
from kerolox.protocol.compression import decompress
from kerolox.protocol.hosts import host_text
from kerolox.protocol.message_id import offset_id


class OutgoingMessage(msgspec.Struct):
    """A message to send."""

    topic: str
    body: bytes
    tag: str = ""
    keys: tuple[str, ...] = ()
    properties: dict[str, str] = msgspec.field(default_factory=dict)  # the user's own
    flag: int = 0  # a number for the user's own use; no peer looks at it
    delay_level: int = 0
    deliver_at_ms: int = 0  # wall time, in place of a delay level
    wait_stored: bool = True  # False: the answer does not wait for flush and replicas
    unique_key: str = ""  # assigned by the sending client

    def wire_properties(self) -> dict[str, str]:
        """Return the properties as sent: the user's own, and those that represent the fields."""
        table = dict(self.properties)
        for name, value in table.items():
            if name in names.RESERVED:
                raise InvalidRequest(
                    f"property {name!r} is reserved; use the message's fields or another name"
                )
            if not name or not value:
                raise InvalidRequest(
                    f"property {name!r} = {value!r}: empty names and values are not transmitted"
                )
        if self.tag:
            table[names.TAGS] = self.tag
        if self.keys:
            table[names.KEYS] = " ".join(self.keys)
        if self.delay_level:
            table[names.DELAY] = str(self.delay_level)
        if self.deliver_at_ms:
            table[names.TIMER_DELIVER_MS] = str(self.deliver_at_ms)
        if self.unique_key:
            table[names.UNIQUE_KEY] = self.unique_key
        table[names.WAIT] = "true" if self.wait_stored else "false"
        return table


class StoredMessage(msgspec.Struct, gc=False):
    """A message read back from a record, see MESSAGE.md.

    Hosts and properties are kept in the record's form and converted to text on demand: a consumer that reads
    only bodies does not pay for them. ``gc=False`` because no attribute can reference the message.
    """

    topic: str
    body: bytes  # as stored: compressed if sys_flag says so, see plain_body
    queue_id: int
    queue_offset: int
    physical_offset: int
    packed_properties: bytes = b""
    flag: int = 0
    sys_flag: int = 0
    born_timestamp: int = 0
    born_host: bytes = bytes(8)
    store_timestamp: int = 0
    store_host: bytes = bytes(8)
    reconsume_times: int = 0
    prepared_offset: int = 0
    body_crc: int = 0
    size: int = 0  # of the whole record
    broker_name: str = ""  # not in the record: set by the consumer
    table: dict[str, str] | None = None  # unpacked properties, after the first access

    @property
    def properties(self) -> dict[str, str]:
        """The properties by name. Changes apply only to this object, not to the packed bytes."""
        if self.table is None:
            self.table = names.unpack(self.packed_properties)
        return self.table

    @property
    def tag(self) -> str:
        return self._value(names.TAGS, names.AT_TAGS)

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self._value(names.KEYS, names.AT_KEYS).split())

    @property
    def unique_key(self) -> str:
        return self._value(names.UNIQUE_KEY, names.AT_UNIQUE_KEY)

    @property
    def offset_id(self) -> str:
        """The position of the message: broker address and physical offset, as hex."""
        return offset_id(self.store_host, self.physical_offset)

    @property
    def message_id(self) -> str:
        """The message id for users: the sender's unique key, or the offset id if it has none."""
        return self.unique_key or self.offset_id

    @property
    def born_address(self) -> str:
        return host_text(self.born_host)

    @property
    def store_address(self) -> str:
        return host_text(self.store_host)

    def plain_body(self) -> bytes:
        """Return the body as its sender wrote it, inflated if needed."""
        return decompress(self.body, self.sys_flag)

    def _value(self, name: str, mark: bytes) -> str:
        if self.table is not None:
            return self.table.get(name, "")
        value = names.find(self.packed_properties, mark)
        return value.decode("utf-8", "replace") if value else ""
