from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerolox.protocol.signature import sign, signature, verify

FIELDS = {"topic": "TopicTest", "AccessKey": "RocketMQ"}
SECRET = "12345678"
VERSION_4 = 399
VERSION_5 = 455


def test_known_signatures() -> None:
    assert signature(FIELDS, None, SECRET) == "0jiwhsaYp5ObE5GObbZH1I8/FT4="
    assert signature(FIELDS, b"", SECRET) == "0jiwhsaYp5ObE5GObbZH1I8/FT4="
    assert signature(FIELDS, b"hello", SECRET) == "IlhJmDi56c1+sdRGdQLyYHpYz4g="


def test_sign_adds_what_it_signed() -> None:
    signed = sign({"topic": "TopicTest"}, b"hello", "RocketMQ", SECRET)
    assert signed == {**FIELDS, "Signature": "IlhJmDi56c1+sdRGdQLyYHpYz4g="}
    with_token = sign({"topic": "TopicTest"}, b"hello", "RocketMQ", SECRET, "token")
    assert with_token["SecurityToken"] == "token"
    assert with_token["Signature"] != signed["Signature"]
    assert verify(with_token, b"hello", SECRET, VERSION_5)


def test_names_are_sorted_by_utf16_units() -> None:
    # U+1F600 begins with D83D, before U+FF5E; by code point it would come after.
    assert signature({"～": "b", "\U0001f600": "a"}, None, SECRET) == signature({"x": "ab"}, None, SECRET)
    assert signature({"b": "2", "Z": "1"}, None, SECRET) == signature({"x": "12"}, None, SECRET)


@pytest.mark.parametrize(
    ("fields", "body", "secret"),
    [
        ({"topic": "TopicTest"}, b"hello", SECRET),
        ({**FIELDS, "Signature": ""}, b"hello", SECRET),
        ({**FIELDS, "Signature": "ünsinn"}, b"hello", SECRET),
        ({**FIELDS, "Signature": "IlhJmDi56c1+sdRGdQLyYHpYz4g="}, b"hallo", SECRET),
        ({**FIELDS, "Signature": "IlhJmDi56c1+sdRGdQLyYHpYz4g="}, b"hello", SECRET + "9"),
        ({**FIELDS, "more": "x", "Signature": "IlhJmDi56c1+sdRGdQLyYHpYz4g="}, b"hello", SECRET),
    ],
)
def test_a_wrong_signature_is_refused(fields: dict[str, str], body: bytes, secret: str) -> None:
    assert not verify(fields, body, secret, VERSION_5)


def test_old_peers_do_not_sign_the_unique_key_query() -> None:
    old = {**sign({"topic": "t"}, None, "a", SECRET), "_UNIQUE_KEY_QUERY": "true"}
    assert verify(old, None, SECRET, VERSION_4)
    assert not verify(old, None, SECRET, VERSION_5)
    new = sign({"topic": "t", "_UNIQUE_KEY_QUERY": "true"}, None, "a", SECRET)
    assert verify(new, None, SECRET, VERSION_5)
    assert not verify(new, None, SECRET, VERSION_4)


def test_a_zone_added_after_signing_is_borne_with() -> None:
    zoned = {**sign({"topic": "t"}, b"x", "a", SECRET), "__ZONE_NAME": "z", "__ZONE_MODE": "true"}
    assert verify(zoned, b"x", SECRET, VERSION_5)
    assert not verify({**zoned, "topic": "u"}, b"x", SECRET, VERSION_5)
    assert verify(sign({"topic": "t", "__ZONE_NAME": "z"}, b"x", "a", SECRET), b"x", SECRET, VERSION_5)


@given(st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=5), st.binary(max_size=20))
def test_what_was_signed_verifies(fields: dict[str, str], body: bytes) -> None:
    fields.pop("_UNIQUE_KEY_QUERY", None)
    assert verify(sign(fields, body, "access", SECRET), body, SECRET, VERSION_5)
