"""Messages between the members of a DLedger group (0.2 to 0.3.2). All data is in bodies: headers contain only
the code, and all answers have header code 200.

As in Apache's members, fields are written in the order of their names and absent ones are omitted. A push is
decoded and encoded by the JSON library directly, including its Base64, because it carries every message.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import Any, Self

import msgspec
from msgspec import UNSET, UnsetType

from kerolox.errors import ProtocolError
from kerolox.protocol.bodies.body import from_tree
from kerolox.protocol.header import Int64, camel
from kerolox.protocol.json_dialect import loads
from kerolox.protocol.ledger_entry import ENTRY_BYTES_MAX, ENTRY_HEAD_BYTES, ENTRY_MAGIC, LedgerEntry

ANSWERED = 200  # header code of every answer


class LedgerCode(IntEnum):
    """Request codes on the port of a member."""

    METADATA = 50000
    APPEND = 50001
    GET = 50002
    VOTE = 51001
    HEART_BEAT = 51002
    PULL = 51003
    PUSH = 51004
    LEADERSHIP_TRANSFER = 51005


class LedgerStatus(IntEnum):
    """``code`` in an answer."""

    SUCCESS = 200
    METADATA_ERROR = 301
    UNSUPPORTED = 303
    UNKNOWN_GROUP = 400
    UNKNOWN_MEMBER = 401
    UNEXPECTED_MEMBER = 402
    EXPIRED_TERM = 403
    NOT_LEADER = 404
    NOT_FOLLOWER = 405
    INCONSISTENT_STATE = 406
    INCONSISTENT_TERM = 407
    INCONSISTENT_LEADER = 409
    INDEX_OUT_OF_RANGE = 410
    UNEXPECTED_ARGUMENT = 411
    REPEATED_PUSH = 413
    DISK_ERROR = 414
    DISK_FULL = 415
    TERM_NOT_READY = 416
    FALL_BEHIND_TOO_MUCH = 417
    TAKE_LEADERSHIP_FAILED = 418
    PUSH_REQUEST_IS_FULL = 421  # 0.3.1.2 and later; others see a code they do not know, and push again
    INTERNAL_ERROR = 500
    TERM_CHANGED = 501
    WAIT_QUORUM_ACK_TIMEOUT = 502
    LEADER_PENDING_FULL = 503
    ILLEGAL_MEMBER_STATE = 504
    LEADER_TRANSFERRING = 506


class VoteResult(StrEnum):
    """The result of a vote request."""

    UNKNOWN = "UNKNOWN"
    ACCEPT = "ACCEPT"
    REJECT_UNKNOWN_LEADER = "REJECT_UNKNOWN_LEADER"
    REJECT_UNEXPECTED_LEADER = "REJECT_UNEXPECTED_LEADER"
    REJECT_EXPIRED_VOTE_TERM = "REJECT_EXPIRED_VOTE_TERM"
    REJECT_ALREADY_VOTED = "REJECT_ALREADY_VOTED"
    REJECT_ALREADY_HAS_LEADER = "REJECT_ALREADY_HAS_LEADER"
    REJECT_TERM_NOT_READY = "REJECT_TERM_NOT_READY"
    REJECT_TERM_SMALL_THAN_LEDGER = "REJECT_TERM_SMALL_THAN_LEDGER"
    REJECT_EXPIRED_LEDGER_TERM = "REJECT_EXPIRED_LEDGER_TERM"
    REJECT_SMALL_LEDGER_END_INDEX = "REJECT_SMALL_LEDGER_END_INDEX"
    REJECT_TAKING_LEADERSHIP = "REJECT_TAKING_LEADERSHIP"


class PushType(StrEnum):
    APPEND = "APPEND"
    COMMIT = "COMMIT"
    COMPARE = "COMPARE"
    TRUNCATE = "TRUNCATE"


class LedgerMessage(msgspec.Struct, frozen=True, kw_only=True, rename=camel):
    """A request or an answer. Classes name their members in alphabetical order: they are written in it."""

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Raises ProtocolError. What is no plain JSON of the right shape is read as fastjson would."""
        try:
            return _decoder(cls).decode(data)  # type: ignore[no-any-return]
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return from_tree(loads(data), cls)


_DECODERS: dict[type, msgspec.json.Decoder[Any]] = {}


def _decoder(cls: type) -> msgspec.json.Decoder[Any]:
    decoder = _DECODERS.get(cls)
    if decoder is None:
        decoder = _DECODERS[cls] = msgspec.json.Decoder(cls)
    return decoder


class PushedEntry(LedgerMessage, frozen=True, kw_only=True):
    """An entry as sent. Its size is explicit, because members compare it."""

    body: bytes = b""
    body_crc: Int64 = 0
    chain_crc: Int64 = 0
    channel: Int64 = 0
    index: Int64 = -1
    magic: Int64 = ENTRY_MAGIC
    pos: Int64 = 0
    size: Int64 = 0
    term: Int64 = -1

    @classmethod
    def of(cls, entry: LedgerEntry) -> Self:
        return cls(body=entry.body, index=entry.index, pos=entry.pos, size=entry.size, term=entry.term)

    @property
    def entry(self) -> LedgerEntry:
        """Raises ProtocolError for one that no log could hold."""
        size = ENTRY_HEAD_BYTES + len(self.body)
        if self.size != size or size > ENTRY_BYTES_MAX:
            raise ProtocolError(
                f"entry {self.index}: its size is {self.size}, its body has {len(self.body)} bytes, and "
                f"{ENTRY_BYTES_MAX} are the most"
            )
        if self.magic != ENTRY_MAGIC or self.channel:
            raise ProtocolError(f"entry {self.index}: magic {self.magic}, channel {self.channel}")
        if self.index < 0 or self.term < 0 or self.pos < 0:
            raise ProtocolError(f"entry {self.index} of term {self.term} at {self.pos}: none may be negative")
        return LedgerEntry(self.index, self.term, self.pos, self.body)


class MemberRequest(LedgerMessage, frozen=True, kw_only=True):
    """Common fields of all requests."""

    code: Int64 = 200
    group: str = ""
    leader_id: str | UnsetType = UNSET
    local_id: str | UnsetType = UNSET
    remote_id: str | UnsetType = UNSET
    term: Int64 = -1


class VoteRequest(LedgerMessage, frozen=True, kw_only=True):
    """A candidate, named ``leader_id``, asks for a vote."""

    code: Int64 = 200
    group: str = ""
    leader_id: str = ""
    ledger_end_index: Int64 = -1
    ledger_end_term: Int64 = -1
    local_id: str = ""
    remote_id: str = ""
    term: Int64 = -1


class VoteAnswer(LedgerMessage, frozen=True, kw_only=True):
    code: Int64 = 200
    group: str = ""
    leader_id: str = ""
    local_id: str = ""
    remote_id: str = ""
    term: Int64 = -1
    vote_result: VoteResult = VoteResult.UNKNOWN


class BeatRequest(LedgerMessage, frozen=True, kw_only=True):
    """A heartbeat of the leader."""

    code: Int64 = 200
    group: str = ""
    leader_id: str = ""
    local_id: str = ""
    remote_id: str = ""
    term: Int64 = -1


class LedgerAnswer(LedgerMessage, frozen=True, kw_only=True):
    """A code and a term: the answer to a heartbeat, to a transfer, and the default answer."""

    code: Int64 = 200
    term: Int64 = -1


class PushRequest(LedgerMessage, frozen=True, kw_only=True):
    """The leader's entries, or a question about one, and always how far it has committed.

    ``batch``, ``count``, ``total_size`` and the first and last index follow from the entries: they are
    written for the record, and not believed.
    """

    batch: bool = False
    batch_entry: list[PushedEntry] = []
    code: Int64 = 200
    commit_index: Int64 = -1
    count: Int64 = 0
    entry: PushedEntry | UnsetType | None = UNSET
    first_entry_index: Int64 = -1
    group: str = ""
    last_entry_index: Int64 = -1
    leader_id: str = ""
    local_id: str = ""
    remote_id: str = ""
    term: Int64 = -1
    total_size: Int64 = 0
    type: PushType = PushType.APPEND

    @property
    def entries(self) -> list[LedgerEntry]:
        """Raises ProtocolError."""
        if isinstance(self.entry, PushedEntry):
            return [self.entry.entry]
        return [pushed.entry for pushed in self.batch_entry]


class PushAnswer(LedgerMessage, frozen=True, kw_only=True):
    """The follower's progress, in all cases. ``index`` is the first index of the push."""

    begin_index: Int64 = -1
    code: Int64 = 200
    count: Int64 = 0
    end_index: Int64 = -1
    group: str = ""
    index: Int64 | UnsetType | None = UNSET
    term: Int64 = -1


class MetadataAnswer(LedgerMessage, frozen=True, kw_only=True):
    code: Int64 = 200
    group: str = ""
    leader_id: str | UnsetType = UNSET
    peers: dict[str, str] = {}
    term: Int64 = -1


class AppendRequest(LedgerMessage, frozen=True, kw_only=True):
    """Request of a tool."""

    body: bytes = b""
    code: Int64 = 200
    group: str = ""
    remote_id: str = ""
    term: Int64 = -1


class AppendAnswer(LedgerMessage, frozen=True, kw_only=True):
    code: Int64 = 200
    group: str = ""
    index: Int64 = -1
    leader_id: str | UnsetType = UNSET
    pos: Int64 = -1
    term: Int64 = -1


class GetRequest(LedgerMessage, frozen=True, kw_only=True):
    """Request of a tool."""

    begin_index: Int64 = 0
    code: Int64 = 200
    group: str = ""
    max_size: Int64 = 0
    remote_id: str = ""
    term: Int64 = -1


class GetAnswer(LedgerMessage, frozen=True, kw_only=True):
    code: Int64 = 200
    entries: list[PushedEntry] = []
    group: str = ""
    leader_id: str | UnsetType = UNSET
    term: Int64 = -1


class TransferRequest(LedgerMessage, frozen=True, kw_only=True):
    """To the leader: hand leadership over to ``transferee_id``. From the leader to that member: take over."""

    code: Int64 = 200
    group: str = ""
    leader_id: str | UnsetType = UNSET
    local_id: str | UnsetType = UNSET
    remote_id: str = ""
    take_leadership_ledger_index: Int64 = -1
    term: Int64 = -1
    transfer_id: str | UnsetType = UNSET
    transferee_id: str | UnsetType = UNSET


def encode_push(request: PushRequest, entries: list[LedgerEntry], *, batch: bool) -> bytes:
    """Return a push with these entries: one, or many if ``batch``."""
    pushed = [PushedEntry.of(entry) for entry in entries]
    return msgspec.structs.replace(
        request,
        batch=batch,
        batch_entry=pushed if batch else [],
        count=len(pushed),
        entry=UNSET if batch or not pushed else pushed[0],
        first_entry_index=entries[0].index if entries else -1,
        last_entry_index=entries[-1].index if entries else -1,
        total_size=sum(entry.size for entry in entries) if batch else 0,
    ).encode()
