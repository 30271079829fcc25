"""Codes, languages, versions and flag words against the numbers RocketMQ 5.3.3 uses."""

from __future__ import annotations

import pytest

from kerolox.errors import RequestFailed
from kerolox.protocol import flags
from kerolox.protocol.codes import (
    CUT_CODES,
    RETRIABLE_CODES,
    STORED_CODES,
    VERSION,
    VERSION_HIGHEST,
    VERSION_QUEUE_MAPPING,
    VERSION_STANDARD_JSON,
    Language,
    RequestCode,
    ResponseCode,
    language_named,
    language_numbered,
    request_name,
    response_name,
    version_name,
    version_ordinal,
)


@pytest.mark.parametrize(
    ("code", "name"),
    [
        (10, "SEND_MESSAGE"),
        (36, "CONSUMER_SEND_MSG_BACK"),
        (105, "GET_ROUTEINFO_BY_TOPIC"),
        (310, "SEND_MESSAGE_V2"),
        (326, "PUSH_REPLY_MESSAGE_TO_CLIENT"),
        (361, "LITE_PULL_MESSAGE"),
        (513, "UPDATE_AND_CREATE_STATIC_TOPIC"),
        (905, "NOTIFY_MIN_BROKER_ID_CHANGE"),
        (200050, "POP_MESSAGE"),
        (200151, "BATCH_ACK_MESSAGE"),
        (1234, "CODE_1234"),
        (-1, "CODE_-1"),
    ],
)
def test_request_names(code: int, name: str) -> None:
    assert request_name(code) == name


@pytest.mark.parametrize(
    ("code", "name"),
    [
        (0, "SUCCESS"),
        (3, "REQUEST_CODE_NOT_SUPPORTED"),
        (17, "TOPIC_NOT_EXIST"),
        (21, "PULL_OFFSET_MOVED"),
        (29, "INVALID_PARAMETER"),
        (215, "FLOW_CONTROL"),
        (604, "ILLEGAL_OPERATION"),
        (1500, "GO_AWAY"),
        (2016, "CONTROLLER_BROKER_LIVE_INFO_NOT_EXISTS"),
        (-1006, "RPC_TIME_OUT"),
        (9999, "CODE_9999"),
    ],
)
def test_response_names(code: int, name: str) -> None:
    assert response_name(code) == name


def test_codes_compare_with_plain_integers() -> None:
    assert RequestCode.PULL_MESSAGE == 11
    assert ResponseCode(19) is ResponseCode.PULL_NOT_FOUND


def test_retriable_codes_are_the_producers_list_and_flow_control() -> None:
    assert frozenset({1, 2, 14, 16, 17, 204, 205, 215, 1500}) == RETRIABLE_CODES
    assert not RETRIABLE_CODES & STORED_CODES
    assert RequestFailed(2, None).can_retry
    assert not RequestFailed(13, None).can_retry


def test_languages_both_ways() -> None:
    for language in Language:
        assert language_named(language.name) is language
        assert language_numbered(int(language)) is language
    assert language_named("JAVA") is Language.JAVA  # number 0 is a language like any other
    assert language_named("go") is Language.GO
    assert (Language.PYTHON, Language.GO, Language.NODE_JS) == (3, 9, 13)


@pytest.mark.parametrize("name", ["", "COBOL", "java "])
def test_unknown_language_names_are_other(name: str) -> None:
    assert language_named(name) is Language.OTHER


@pytest.mark.parametrize("number", [-1, 14, 127])
def test_unknown_language_numbers_are_other(number: int) -> None:
    assert language_numbered(number) is Language.OTHER


VERSIONS = {
    0: "V3_0_0_SNAPSHOT",
    15: "V3_0_0_FINAL",
    28: "V3_0_7_SNAPSHOT",
    37: "V3_0_11",
    62: "V3_1_8_SNAPSHOT",
    79: "V3_2_6",
    121: "V3_4_9",
    213: "V4_0_0",
    232: "V4_1_0_SNAPSHOT",
    253: "V4_2_0",
    273: "V4_3_0",
    293: "V4_4_0",
    317: "V4_5_2",
    393: "V4_9_0",
    399: "V4_9_3",
    401: "V4_9_4",
    409: "V4_9_8",
    411: "V4_9_9",
    413: "V5_0_0",
    433: "V5_1_0",
    453: "V5_2_0",
    473: "V5_3_0",
    475: "V5_3_1",
    479: "V5_3_3",
    612: "HIGHER_VERSION",
}


@pytest.mark.parametrize(("ordinal", "name"), VERSIONS.items())
def test_version_names_and_ordinals(ordinal: int, name: str) -> None:
    assert version_name(ordinal) == name
    assert version_ordinal(name) == ordinal


def test_version_spellings() -> None:
    assert version_ordinal("5.5.0") == VERSION
    assert version_ordinal("5.3.3") == 479
    assert version_ordinal("5.3.3-SNAPSHOT") == 478
    assert version_ordinal("v4.9.4") == VERSION_STANDARD_JSON
    assert version_ordinal("5.0.0") == VERSION_QUEUE_MAPPING
    assert version_name(613) == version_name(10**6) == version_name(VERSION_HIGHEST)
    assert version_name(-1) == "VERSION_-1"


@pytest.mark.parametrize("text", ["", "6.0.0", "5.3", "latest"])
def test_no_such_version(text: str) -> None:
    with pytest.raises(ValueError, match="no RocketMQ release"):
        version_ordinal(text)


def test_transaction_bits() -> None:
    prepared = flags.COMPRESSED | flags.COMPRESSION_ZLIB | flags.TRANSACTION_PREPARED
    assert prepared == 0x305
    assert flags.transaction_state(prepared) == flags.TRANSACTION_PREPARED
    assert flags.with_transaction_state(prepared, flags.TRANSACTION_COMMIT) == 0x309
    assert flags.with_transaction_state(prepared, flags.TRANSACTION_NONE) == 0x301


@pytest.mark.parametrize(("perm", "text"), [(7, "RWX"), (6, "RW-"), (4, "R--"), (2, "-W-"), (0, "---")])
def test_perm_text(perm: int, text: str) -> None:
    assert flags.perm_text(perm) == text


def test_compact_headers_have_the_codes_of_pop_without_their_high_bits() -> None:
    assert CUT_CODES[3442] == RequestCode.POP_MESSAGE
    assert CUT_CODES[3543] == RequestCode.BATCH_ACK_MESSAGE
    assert CUT_CODES[3471] == RequestCode.TRIGGER_LITE_DISPATCH
    assert not CUT_CODES.keys() & set(RequestCode)
