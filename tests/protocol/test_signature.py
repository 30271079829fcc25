from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kerolox.compiled import load
from kerolox.protocol.signature import _key, _signature_of, sign, signature, signer, verify

CORE = load()

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


def test_hmac_sha1_of_rfc_2202() -> None:
    """Its cases with keys and data that are text: a short key, and one that is longer than a block."""
    assert signature({"x": "what do ya want for nothing?"}, None, "Jefe") == "7/zfauXrL6LSdBbV8YTfnCWafHk="
    text = "Test Using Larger Than Block-Size Key"
    assert signature({"x": text}, b" - Hash Key First", "k" * 80) == signature(
        {"x": text + " - Hash Key First"}, b"", "k" * 80
    )


def test_a_signer_bears_with_nothing() -> None:
    own = signer("a", SECRET)
    good = sign({"topic": "t"}, b"x", "a", SECRET)
    assert own.has_signed(good, b"x")
    assert not own.has_signed({**good, "__ZONE_NAME": "z"}, b"x")
    assert not own.has_signed({**good, "Signature": "ü"}, b"x")
    assert not own.has_signed(sign({"topic": "t"}, b"x", "b", SECRET), b"x")


names = st.text(max_size=4) | st.sampled_from(
    ["a", "b", "ab", "Z", "AccessKey", "Signature", "é", "\U0001f600", "～"]
)


@pytest.mark.skipif(CORE is None, reason="the core is not compiled")
@settings(deadline=None)
@given(
    st.dictionaries(names, st.text(st.characters(), max_size=80), max_size=12),
    st.binary(max_size=200),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=80),
    st.frozensets(names, max_size=2),
)
def test_compiled_signs_as_python_does(
    fields: dict[str, str], body: bytes, secret: str, left_out: frozenset[str]
) -> None:
    assert CORE is not None
    found = CORE.signature_of(fields, body, _key(secret), left_out)
    assert found in (None, _signature_of(fields, body, _key(secret), left_out))
    usual = all(name.isascii() for name in fields) and not any(
        "\ud800" <= c <= "\udfff" for c in "".join(fields.values())
    )
    assert (found is not None) >= usual
    assert signature(fields, body, secret, left_out) == _signature_of(fields, body, _key(secret), left_out)


@pytest.mark.skipif(CORE is None, reason="the core is not compiled")
def test_compiled_leaves_or_refuses_what_is_odd() -> None:
    assert CORE is not None
    key, none = _key(SECRET), frozenset[str]()
    many = {str(number): "x" for number in range(65)}
    assert CORE.signature_of(many, b"", key, none) is None
    assert CORE.signature_of({**many, "Signature": "x"}, b"", key, frozenset({"0"})) is not None
    assert signature(many, b"", SECRET) == _signature_of(many, b"", key, none)
    wrong: list[tuple[object, ...]] = [
        ([], b"", key, none),
        ({1: "x"}, b"", key, none),
        ({"x": 1}, b"", key, none),
        ({}, "", key, none),
        ({}, b"", key[1:], none),
        ({}, b"", SECRET, none),
        ({}, b"", key, ()),
    ]
    for arguments in wrong:
        with pytest.raises((TypeError, ValueError)):
            CORE.signature_of(*arguments)


@given(st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=5), st.binary(max_size=20))
def test_what_was_signed_verifies(fields: dict[str, str], body: bytes) -> None:
    fields.pop("_UNIQUE_KEY_QUERY", None)
    assert verify(sign(fields, body, "access", SECRET), body, SECRET, VERSION_5)
