"""What ``make fuzz`` feeds with arbitrary bytes: every decoder of the protocol, one function each.

A target may raise the error its decoder promises and nothing else. Each also checks something that must
hold when the bytes were accepted, so that a decoder cannot pass by accepting everything.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from kerolox.compiled import CORE
from kerolox.errors import InvalidRequest, ProtocolError
from kerolox.protocol import (
    fast_codecs,  # noqa: F401 — the short ways are fuzzed too
    plain_sends,
)
from kerolox.protocol import properties as packed
from kerolox.protocol.batch import encode_batch, split_batch
from kerolox.protocol.bodies import controller, dledger, heartbeat, offsets, registration, routes, stats
from kerolox.protocol.bodies.properties_text import read_properties
from kerolox.protocol.broker_identity import decode_identity, encode_identity
from kerolox.protocol.command import decode_command
from kerolox.protocol.compression import decompress
from kerolox.protocol.epoch_file import decode_epochs, encode_epochs
from kerolox.protocol.frame import Frame, FrameSplitter, pack_frame
from kerolox.protocol.grpc.calls import CallFailed, MessageReader, pack, read_head
from kerolox.protocol.grpc.messages import parse
from kerolox.protocol.ha import REPORT_BYTES, RangeReader, ReportReader, pack_report
from kerolox.protocol.ha_epochs import (
    FollowerFrames,
    Hello,
    LeaderFrames,
    Welcome,
    pack_epoch_report,
    pack_hello,
    pack_welcome,
)
from kerolox.protocol.ha_proof import FollowersProof, LeadersProof, ProofRefused
from kerolox.protocol.http2.connection import RequestBegun, ServerConnection
from kerolox.protocol.http2.frames import PREFACE
from kerolox.protocol.http2.frames import settings as h2_settings
from kerolox.protocol.http2.limits import DEFAULT
from kerolox.protocol.json_dialect import dumps, loads
from kerolox.protocol.message_id import read_offset_id, read_unique_key
from kerolox.protocol.pop.answer_texts import read_message_offsets, read_start_offsets
from kerolox.protocol.pop.handle import Handle
from kerolox.protocol.pop.revive_records import read_record
from kerolox.protocol.record import decode_records
from kerolox.protocol.record_scan import CHECK_BODY, CHECK_NONE, CHECK_RECORD, SIZE, scan
from kerolox.protocol.send_rules import SendRules
from kerolox.protocol.signature import sign, verify
from kerolox.protocol.signature import signer as send_signer
from kerolox.proxy.checks import Rejected
from kerolox.proxy.messages import outgoing
from kerolox.proxy.receipts import Receipt
from kerolox.spark.columns import arrow_schema
from kerolox.spark.record_columns import at_once
from kerolox.spark.records import FIXED_BYTES, decode_by_numpy, record_starts
from tests.served import REQUEST_HEADERS


def frames(data: bytes) -> None:
    whole, pieces = FrameSplitter(), FrameSplitter()
    at_once = whole.feed(data)
    step = 1 + (data[0] if data else 0)
    bit_by_bit = [frame for at in range(0, len(data), step) for frame in pieces.feed(data[at : at + step])]
    assert at_once == bit_by_bit
    assert (whole.error is None) == (pieces.error is None)
    for frame in at_once:
        assert FrameSplitter().feed(pack_frame(*frame)) == [frame]


def commands(data: bytes) -> None:
    encoding, header = (data[0] % 3, data[1:]) if data else (0, b"")
    try:
        command = decode_command(encoding, header, b"")
        command.fields  # noqa: B018
    except ProtocolError:
        return
    cls = REQUEST_HEADERS.get(command.code)
    if cls is not None:
        try:
            command.header(cls)
        except (InvalidRequest, ProtocolError):
            pass


def headers(data: bytes) -> None:
    """A well-formed envelope around arbitrary fields, so that the typed headers are reached."""
    codes = sorted(code for code, cls in REQUEST_HEADERS.items() if cls is not None)
    code = codes[data[0] % len(codes)] if data else codes[0]
    header = b'{"code":%d,"extFields":%b,"flag":0,"opaque":1,"version":479}' % (code, data[1:])
    try:
        command = decode_command(0, header, b"")
        cls = REQUEST_HEADERS.get(command.code)
        if cls is not None:
            command.header(cls)
    except (InvalidRequest, ProtocolError):
        pass


def json(data: bytes) -> None:
    try:
        value = loads(data)
    except ProtocolError:
        return
    assert loads(dumps(value)) is not NotImplemented


def bodies(data: bytes) -> None:
    kinds = (
        routes.TopicRoute,
        routes.ClusterInfo,
        heartbeat.HeartbeatData,
        stats.ConsumeStats,
        offsets.ConsumerOffsetTable,
        offsets.ResetOffsets,
        controller.SyncStateSet,
        controller.ElectedMaster,
        controller.BrokerReplicasInfo,
        controller.EpochRanges,
    )
    kind = kinds[data[0] % len(kinds)] if data else kinds[0]
    try:
        body = kind.decode(data[1:])
    except ProtocolError:
        return
    assert kind.decode(body.encode()) == body


def ledger_messages(data: bytes) -> None:
    """What members of a DLedger group say: what was read is read again from what is written of it."""
    kinds = (
        dledger.PushRequest,
        dledger.PushAnswer,
        dledger.VoteRequest,
        dledger.VoteAnswer,
        dledger.BeatRequest,
        dledger.LedgerAnswer,
        dledger.MemberRequest,
        dledger.MetadataAnswer,
        dledger.AppendRequest,
        dledger.GetRequest,
        dledger.GetAnswer,
        dledger.TransferRequest,
    )
    kind = kinds[data[0] % len(kinds)] if data else kinds[0]
    try:
        message = kind.decode(data[1:])
    except ProtocolError:
        return
    assert kind.decode(message.encode()) == message
    if isinstance(message, dledger.PushRequest):
        try:
            entries = message.entries
        except ProtocolError:
            return
        again = dledger.encode_push(message, entries, batch=len(entries) != 1)
        assert dledger.PushRequest.decode(again).entries == entries


def registrations(data: bytes) -> None:
    try:
        registration.decode_registration(data[1:], compressed=bool(data[:1] > b"\x80"), version=479)
    except ProtocolError:
        pass


def properties(data: bytes) -> None:
    table = packed.unpack(data)
    for name, value in table.items():
        if data.isascii():
            assert packed.find(data, packed.marker(name)) == value.encode()


def properties_text(data: bytes) -> None:
    try:
        read_properties(data)
    except ProtocolError:
        pass


def records(data: bytes) -> None:
    for check in (CHECK_NONE, CHECK_BODY, CHECK_RECORD):
        found = scan(data, check=check)
        assert found.position == sum(entry[SIZE] for entry in found.entries)
        assert 0 <= found.position <= len(data)
    try:
        messages = decode_records(data)
    except ProtocolError:
        return
    assert sum(message.size for message in messages) == len(data)


class _Queue:
    next_offset = 5


def columns(data: bytes) -> None:
    """Records to Arrow columns: the compiled way takes what numpy takes, and makes the same of it."""
    starts, stop = record_starts(data, 0, len(data))
    if not starts or stop != len(data) or len(starts) > 8 * 32:
        # No block as a pull brings it: look at every byte of a few, as if records began there.
        starts = np.arange(max(0, min(16, len(data) - FIXED_BYTES - 2)), dtype=np.int64).tobytes()
    positions = np.frombuffer(starts, np.int64)
    if not len(positions) or len(data) < int(positions[-1]) + FIXED_BYTES + 3:
        return
    for kind in ("map", "string"):
        schema = arrow_schema(properties=kind)
        found: list[pa.RecordBatch | None] = []
        for way in (at_once, decode_by_numpy):
            try:
                found.append(way(data, positions, schema, None))
            except ProtocolError:
                found.append(None)
        at_once_, by_numpy = found
        if CORE is not None and data.count(b"\x02") <= 256:  # more properties than it takes
            assert (at_once_ is None) == (by_numpy is None)
        if at_once_ is not None:
            at_once_.validate(full=True)
            assert at_once_.equals(by_numpy)


def sends(data: bytes) -> None:
    """Runs of sends by the core and by its twin: whatever the core takes, the twin takes alike.

    A frame each for arbitrary bytes, and for arbitrary fields in a usual JSON and a usual binary header.
    Nothing is taken with a field that is not known; where senders must sign, nothing that is not signed.
    """
    half = len(data) // 2
    fields = (
        b'"a":"g","b":"T","c":"TBW102","d":"8","e":"0","f":"0","g":"1","h":"0","i":"UNIQ_KEY\\u0001K\\u0002"'
    )
    usual = b'{"code":310,"extFields":{%b%b},"flag":0,"opaque":1,"version":479}'
    packed_fields = b"".join(
        b"\x00\x01%c%b%b" % (letter, len(value).to_bytes(4, "big"), value)
        for letter, value in zip(
            b"abcdefghi", [b"g", b"T", b"TBW102", b"8", b"0", b"0", b"1", b"0", data[:half]], strict=True
        )
    )
    binary = b"\x01\x36\x00\x01\xdf" + bytes(12) + len(packed_fields).to_bytes(4, "big") + packed_fields
    own = decode_command(0, usual % (fields, b""), b"").fields
    right = sign(own, data, "me", "secret")["Signature"].encode()
    signer = None if data[:1] < b"\x80" else send_signer("me", "secret")
    frames: list[Frame] = [
        (0, usual % (fields, b"," + data[:half] if data[:1] == b'"' else b""), data[half:]),
        (1, binary, data[half:]),
        (data[0] % 3 if data else 0, data[:half], data[half:]),
        (0, (usual % (fields, b"")).replace(b"310", b"320"), data),
        (0, usual % (fields, b',"AccessKey":"%b"' % data[:half]), data[half:]),
        (0, usual % (fields, b',"AccessKey":"me","Signature":"%b"' % data[:half].hex().encode()), data),
        (0, usual % (fields, b',"AccessKey":"me","Signature":"%b"' % right), data),
        (0, usual % (fields, b',"%b":"x"' % data[:half]), data[half:]),
    ]
    rules = SendRules(store_host=bytes(8), body_bytes_max=1 << 20, region_id="r", stops=(b"DELAY",))

    def take(how: Callable[..., plain_sends.Taken | None], at: int, count: int) -> object:
        targets = {b"T": (b"T", b"\x01T", {0: _Queue(), 1: _Queue()})}
        taken = how(frames[: at + count], at, targets, rules, None, bytes(8), 0, 1 << 22, 7, signer)
        return None if taken is None else (*taken[:4], taken[5])

    for at in range(len(frames)):
        compiled = take(plain_sends.take_sends, at, len(frames) - at)
        if compiled is not None:
            count = compiled[0]  # type: ignore[index]
            assert compiled == take(plain_sends._take_sends, at, count)
            for one in frames[at : at + count]:
                command = decode_command(*one)
                assert command.fields.keys() <= plain_sends.KNOWN_FIELDS
                assert signer is None or verify(command.fields, command.body, "secret", 479)


def batches(data: bytes) -> None:
    try:
        items = split_batch(data)
    except ProtocolError:
        return
    assert split_batch(encode_batch(items)) == items


def compression(data: bytes) -> None:
    flag = (0x1, 0x101, 0x201, 0x301)[data[0] % 4] if data else 1
    try:
        assert len(decompress(data[1:], flag, bytes_max=1 << 20)) <= 1 << 20
    except ProtocolError:
        pass


def ids(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    for read in (read_offset_id, read_unique_key):
        try:
            read(text)
        except (InvalidRequest, ProtocolError):
            pass


def ranges(data: bytes) -> None:
    """What a leader sends its followers: in pieces the same as at once."""

    def read(step: int) -> tuple[list[tuple[int, int | None]], bool]:
        reader, found = RangeReader(), []
        try:
            for at in range(0, len(data), step):
                for offset, piece in reader.feed(data[at : at + step]):
                    assert offset >= 0
                    found += [(offset + i, byte) for i, byte in enumerate(piece)] or [(offset, None)]
        except ProtocolError:
            return found, False
        return found, True

    (at_once, good), (bit_by_bit, good_too) = read(len(data) or 1), read(1 + (data[0] if data else 0))
    assert good == good_too
    assert not good or at_once == bit_by_bit


def reports(data: bytes) -> None:
    """What a follower says to its leader."""
    try:
        last = ReportReader().feed(data)
    except ProtocolError:
        return
    whole = len(data) - len(data) % REPORT_BYTES
    assert last is None if not whole else pack_report(last) == data[whole - REPORT_BYTES : whole]


def epoch_ranges(data: bytes) -> None:
    """What a leader with a controller sends its followers: in pieces the same as at once."""

    def read(step: int) -> tuple[list[object], bool]:
        reader = LeaderFrames()
        found: list[object] = []
        try:
            for at in range(0, len(data), step):
                for frame in reader.feed(data[at : at + step]):
                    if isinstance(frame, Welcome):
                        assert pack_welcome(frame.end, frame.epochs) in data
                        found.append(frame)
                        continue
                    said = (frame.epoch, frame.confirmed)
                    found += [(frame.offset + i, byte, *said) for i, byte in enumerate(frame.data)] or [
                        (frame.offset, None, *said)
                    ]
        except ProtocolError:
            return found, False
        return found, True

    (at_once, good), (bit_by_bit, good_too) = read(len(data) or 1), read(1 + (data[0] if data else 0))
    assert good == good_too
    assert not good or at_once == bit_by_bit


def epoch_reports(data: bytes) -> None:
    """What a follower says to a leader with a controller."""
    try:
        frames = FollowerFrames().feed(data)
    except ProtocolError:
        return
    packed = [pack_hello(frame) if isinstance(frame, Hello) else pack_epoch_report(frame) for frame in frames]
    assert data.startswith(b"".join(packed))


def proofs(data: bytes) -> None:
    """What either side says before a log is copied: nobody gets in by chance, nor in other steps."""
    proof = LeadersProof({"inner": "secret"}.get)
    with contextlib.suppress(ProofRefused):
        for at in range(0, len(data), 7):
            proof.feed(data[at : at + 7])
    assert not proof.done
    followers = FollowersProof("inner", "secret")
    with contextlib.suppress(ProofRefused):
        followers.feed(data)
    assert not followers.done


def epoch_files(data: bytes) -> None:
    try:
        epochs = decode_epochs(data)
    except ProtocolError:
        return
    assert decode_epochs(encode_epochs(epochs)) == epochs


def identities(data: bytes) -> None:
    try:
        identity = decode_identity(data)
    except ProtocolError:
        return
    assert decode_identity(encode_identity(identity)) == identity


def pop_texts(data: bytes) -> None:
    """Handles of clients, and the strings of an answer."""
    text = data.decode("utf-8", "replace")
    with contextlib.suppress(InvalidRequest):
        handle = Handle.parse(text)
        assert Handle.parse(str(handle)) == handle
    for read in (read_start_offsets, read_message_offsets):
        with contextlib.suppress(ProtocolError):
            read(text)


def revive_records(data: bytes) -> None:
    for tag in ("ck", "ack", "bAck"):
        with contextlib.suppress(ProtocolError):
            record = read_record(tag, data)
            assert read_record(tag, record.encode()) == record
            assert len(record.offsets) <= 4096


def http2(data: bytes) -> None:
    """A connection behind its greeting: whole and in pieces it does the same, and keeps its bounds."""
    greeting = PREFACE + h2_settings([])
    whole, pieces = ServerConnection(), ServerConnection()
    events = whole.receive(greeting + data, 0.0)
    step = 1 + (data[0] if data else 0)
    in_pieces = pieces.receive(greeting, 0.0)
    for at in range(0, len(data), step):
        in_pieces += pieces.receive(data[at : at + step], 0.0)
    assert in_pieces == events
    assert b"".join(whole.output) == b"".join(pieces.output)
    assert whole.open_streams <= DEFAULT.streams_max
    assert whole.waiting_bytes <= len(data)
    for event in events:
        if isinstance(event, RequestBegun):
            with contextlib.suppress(CallFailed):
                read_head(event.fields)


def grpc_messages(data: bytes) -> None:
    """The data of a call, and the messages of the service."""
    reader = MessageReader(1 << 20)
    with contextlib.suppress(CallFailed):
        found = list(reader.feed(data))
        assert b"".join(map(pack, found)) == data[: len(data) - reader.waiting_bytes]
    for name in ("TelemetryCommand", "SendMessageRequest", "ReceiveMessageRequest"):
        with contextlib.suppress(ValueError):
            message = parse(name, data)
            if name == "SendMessageRequest" and message.messages:
                with contextlib.suppress(Rejected):
                    outgoing(message.messages[0], "T", 0, "")
    with contextlib.suppress(Rejected):
        text = data.decode("utf-8", "replace")
        assert Receipt.parse(str(Receipt.parse(text))) == Receipt.parse(text)


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target
    for target in (
        frames,
        commands,
        headers,
        json,
        bodies,
        ledger_messages,
        registrations,
        properties,
        properties_text,
        records,
        columns,
        sends,
        batches,
        compression,
        ids,
        ranges,
        reports,
        epoch_ranges,
        epoch_reports,
        proofs,
        epoch_files,
        identities,
        pop_texts,
        revive_records,
        http2,
        grpc_messages,
    )
}
