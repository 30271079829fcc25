"""Messages between the members of a DLedger group, byte for byte as Apache's 0.3.2 writes them."""

from __future__ import annotations

import pytest

from kerolox.errors import ProtocolError
from kerolox.protocol.bodies.dledger import (
    AppendAnswer,
    AppendRequest,
    BeatRequest,
    GetAnswer,
    GetRequest,
    LedgerAnswer,
    LedgerMessage,
    MemberRequest,
    MetadataAnswer,
    PushAnswer,
    PushedEntry,
    PushRequest,
    PushType,
    TransferRequest,
    VoteAnswer,
    VoteRequest,
    VoteResult,
    encode_push,
)
from kerolox.protocol.ledger_entry import LedgerEntry

ENTRY = LedgerEntry(index=10, term=3, pos=1000, body=b"hello")
ENTRY_JSON = (
    b'{"body":"aGVsbG8=","bodyCrc":0,"chainCrc":0,"channel":0,"index":10,"magic":1,"pos":1000,'
    b'"size":53,"term":3}'
)
BETWEEN = {"group": "g", "leader_id": "n0", "local_id": "n0", "remote_id": "n1", "term": 3}

# Written by the jars of 5.5.0 (DLedger 0.3.2, fastjson 1.2.83).
GOLDEN: list[tuple[LedgerMessage, bytes]] = [
    (
        VoteRequest(**BETWEEN, ledger_end_index=9, ledger_end_term=2),
        b'{"code":200,"group":"g","leaderId":"n0","ledgerEndIndex":9,"ledgerEndTerm":2,"localId":"n0",'
        b'"remoteId":"n1","term":3}',
    ),
    (
        VoteAnswer(**BETWEEN, vote_result=VoteResult.ACCEPT),
        b'{"code":200,"group":"g","leaderId":"n0","localId":"n0","remoteId":"n1","term":3,"voteResult":"ACCEPT"}',
    ),
    (
        BeatRequest(**BETWEEN),
        b'{"code":200,"group":"g","leaderId":"n0","localId":"n0","remoteId":"n1","term":3}',
    ),
    (LedgerAnswer(), b'{"code":200,"term":-1}'),
    (LedgerAnswer(code=403, term=4), b'{"code":403,"term":4}'),
    (
        PushAnswer(begin_index=0, count=1, end_index=10, group="g", index=10, term=3),
        b'{"beginIndex":0,"code":200,"count":1,"endIndex":10,"group":"g","index":10,"term":3}',
    ),
    (
        MemberRequest(group="g", remote_id="n0"),
        b'{"code":200,"group":"g","remoteId":"n0","term":-1}',
    ),
    (
        MetadataAnswer(group="g", leader_id="n0", peers={"n0": "127.0.0.1:40911", "n1": "127.0.0.1:40912"}),
        b'{"code":200,"group":"g","leaderId":"n0","peers":{"n0":"127.0.0.1:40911","n1":"127.0.0.1:40912"},'
        b'"term":-1}',
    ),
    (
        AppendRequest(body=b"hello", group="g", remote_id="n0"),
        b'{"body":"aGVsbG8=","code":200,"group":"g","remoteId":"n0","term":-1}',
    ),
    (
        AppendAnswer(group="g", index=10, leader_id="n0", pos=1000, term=3),
        b'{"code":200,"group":"g","index":10,"leaderId":"n0","pos":1000,"term":3}',
    ),
    (
        GetRequest(begin_index=10, group="g", remote_id="n0"),
        b'{"beginIndex":10,"code":200,"group":"g","maxSize":0,"remoteId":"n0","term":-1}',
    ),
    (
        GetAnswer(entries=[PushedEntry.of(ENTRY)], group="g"),
        b'{"code":200,"entries":[' + ENTRY_JSON + b'],"group":"g","term":-1}',
    ),
    (
        TransferRequest(
            group="g",
            leader_id="n0",
            local_id="n0",
            remote_id="n1",
            take_leadership_ledger_index=10,
            term=3,
            transfer_id="n0",
            transferee_id="n1",
        ),
        b'{"code":200,"group":"g","leaderId":"n0","localId":"n0","remoteId":"n1",'
        b'"takeLeadershipLedgerIndex":10,"term":3,"transferId":"n0","transfereeId":"n1"}',
    ),
]


@pytest.mark.parametrize(("message", "golden"), GOLDEN, ids=lambda value: type(value).__name__)
def test_messages_are_written_and_read_as_by_apache(message: LedgerMessage, golden: bytes) -> None:
    assert message.encode() == golden
    assert type(message).decode(golden) == message


def test_pushes_are_written_and_read_as_by_apache() -> None:
    request = PushRequest(**BETWEEN, commit_index=9)
    golden = (
        b'{"batch":false,"batchEntry":[],"code":200,"commitIndex":9,"count":1,"entry":' + ENTRY_JSON + b","
        b'"firstEntryIndex":10,"group":"g","lastEntryIndex":10,"leaderId":"n0","localId":"n0","remoteId":"n1",'
        b'"term":3,"totalSize":0,"type":"APPEND"}'
    )
    assert encode_push(request, [ENTRY], batch=False) == golden
    assert PushRequest.decode(golden).entries == [ENTRY]

    commit = PushRequest(**BETWEEN, commit_index=9, type=PushType.COMMIT)
    assert encode_push(commit, [], batch=False) == (
        b'{"batch":false,"batchEntry":[],"code":200,"commitIndex":9,"count":0,"firstEntryIndex":-1,"group":"g",'
        b'"lastEntryIndex":-1,"leaderId":"n0","localId":"n0","remoteId":"n1","term":3,"totalSize":0,'
        b'"type":"COMMIT"}'
    )

    two = [ENTRY, LedgerEntry(11, 3, 1053, b"")]
    many = encode_push(request, two, batch=True)
    assert b'"batch":true' in many
    assert b'"count":2' in many
    assert b'"firstEntryIndex":10' in many
    assert b'"lastEntryIndex":11' in many
    assert b'"totalSize":101' in many
    assert b'"entry":' not in many
    assert PushRequest.decode(many).entries == two


def test_a_minimal_push_is_enough() -> None:
    said = (
        b'{"term":3,"remoteId":"n1","group":"g","leaderId":"n0","type":"APPEND","commitIndex":9,"entry":'
        b'{"size":53,"index":10,"term":3,"pos":1000,"body":"aGVsbG8="}}'
    )
    request = PushRequest.decode(said)
    assert request.entries == [ENTRY]
    assert (request.term, request.commit_index, request.leader_id) == (3, 9, "n0")


def test_what_apache_reads_leniently_is_read() -> None:
    asked = VoteRequest.decode(b'{term:\'3\',group:"g",leaderId:"n0",remoteId:"n1",ledgerEndIndex:9}')
    assert (asked.term, asked.ledger_end_index, asked.ledger_end_term) == (3, 9, -1)
    assert VoteAnswer.decode(b'{"voteResult":"REJECT_SOMETHING_NEW"}').vote_result is VoteResult.UNKNOWN


@pytest.mark.parametrize(
    "entry",
    [
        b'{"size":52,"index":10,"term":3,"pos":1000,"body":"aGVsbG8="}',
        b'{"size":53,"index":10,"term":3,"pos":1000,"body":"aGVsbG8=","magic":2}',
        b'{"size":53,"index":10,"term":3,"pos":1000,"body":"aGVsbG8=","channel":1}',
        b'{"size":53,"index":-1,"term":3,"pos":1000,"body":"aGVsbG8="}',
        b'{"size":53,"index":10,"term":3,"pos":-1,"body":"aGVsbG8="}',
    ],
)
def test_entries_that_no_log_can_hold_are_refused(entry: bytes) -> None:
    request = PushRequest.decode(b'{"entry":' + entry + b"}")
    with pytest.raises(ProtocolError, match="entry"):
        request.entries  # noqa: B018


@pytest.mark.parametrize(
    "said", [b"", b"[]", b"{", b'{"term":"x"}', b'{"entry":7}', b'{"entry":{"body":"*"}}']
)
def test_nonsense_is_a_protocol_error(said: bytes) -> None:
    with pytest.raises(ProtocolError):
        PushRequest.decode(said)
