"""Rules of sends: limits, and properties that the broker adds to messages and answers. An immutable value."""

from __future__ import annotations

from dataclasses import dataclass, field

from kerolox.protocol import properties as names
from kerolox.protocol.codes import VERSION, Language
from kerolox.protocol.header_binary import encode_run
from kerolox.protocol.header_json import quoted


@dataclass(frozen=True, slots=True, kw_only=True)
class SendRules:
    """Rules for sends. A changed option makes a new value. The core reads attributes by name."""

    store_host: bytes
    body_bytes_max: int  # of a body, and of a batch
    cluster: str = ""
    region_id: str = ""
    trace_on: bool = True
    stops: tuple[bytes, ...] = ()  # words in properties that make a message not plain
    wait_matters: bool = False  # sends that ask not to wait for a flush or replicas are not plain
    added: bytes = field(init=False)  # properties the broker adds to every message
    id_prefix: bytes = field(init=False)  # of offset ids
    # Parts of answers that every plain send gets.
    json_after: bytes = field(init=False)  # from behind the unique key up to the opaque
    json_end: bytes = field(init=False)
    binary_head: bytes = field(init=False)  # before the opaque
    binary_tail: bytes = field(init=False)  # behind the unique key

    def __post_init__(self) -> None:
        trace = "true" if self.trace_on else "false"
        region = self.region_id
        derived = {
            "added": names.pack(
                {names.MSG_REGION: region, names.TRACE_ON: trace, names.CLUSTER: self.cluster}
            ),
            "id_prefix": self.store_host.hex().upper().encode(),
            "json_after": f'","MSG_REGION":{quoted(region)},"TRACE_ON":"{trace}"}},"flag":1,'
            '"language":"PYTHON","opaque":'.encode(),
            "json_end": f',"serializeTypeCurrentRPC":"JSON","version":{VERSION}}}'.encode(),
            "binary_head": b"\x00\x00" + Language.PYTHON.to_bytes(1) + VERSION.to_bytes(2),
            "binary_tail": encode_run({"MSG_REGION": region, "TRACE_ON": trace}),
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)
