"""Signatures of form 2: what they cover, byte for byte."""

from __future__ import annotations

import hmac
import struct
from base64 import urlsafe_b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerolox.protocol.signature import sign, verify
from kerolox.protocol.signature_v2 import SIGNATURE_V2, Stamp, signature_v2, verified_stamp

SECRET = "the secret"
STAMP = Stamp(1_700_000_000_000, b"session!", 7)
FIELDS = {"AccessKey": "admin", "topic": "T", "offset": "12"}
texts = st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=5)


def signed(fields: dict[str, str] = FIELDS, body: bytes = b"body", code: int = 11) -> dict[str, str]:
    return {**fields, SIGNATURE_V2: signature_v2(code, False, fields, body, SECRET, STAMP)}


def test_the_bytes() -> None:
    stamp = struct.pack(">q8sQ", *STAMP)
    text = b"kerolox request signature, form 2\n" + stamp + struct.pack(">i?I", 11, True, 2)
    for part in (b"a", b"1", "ä".encode(), b"", b"body"):
        text += struct.pack(">I", len(part)) + part
    found = signature_v2(11, True, {"ä": "", "a": "1", "Signature": "x"}, b"body", SECRET, STAMP)
    assert found == urlsafe_b64encode(stamp + hmac.digest(SECRET.encode(), text, "sha256")).decode()


def test_the_stamp_comes_back() -> None:
    assert verified_stamp(11, False, signed(), b"body", SECRET) == STAMP


@pytest.mark.parametrize(
    ("code", "one_way", "fields", "body", "secret"),
    [
        (25, False, signed(), b"body", SECRET),  # another request
        (11, True, signed(), b"body", SECRET),
        (11, False, {**signed(), "topic": "T1", "offset": "2"}, b"body", SECRET),  # divided anew
        (11, False, {**signed(), "topic": "12", "offset": "T"}, b"body", SECRET),
        (11, False, {name.replace("topic", "Topic"): v for name, v in signed().items()}, b"body", SECRET),
        (11, False, {**signed(), "more": ""}, b"body", SECRET),
        (11, False, {name: v for name, v in signed().items() if name != "offset"}, b"body", SECRET),
        (11, False, {**signed(), "offset": "1"}, b"2body", SECRET),
        (11, False, signed(), b"bod", SECRET),
        (11, False, signed(), b"body", "another"),
        (11, False, FIELDS, b"body", SECRET),
        (11, False, {**FIELDS, SIGNATURE_V2: "ä" * 76}, b"body", SECRET),
        (11, False, {**FIELDS, SIGNATURE_V2: "!" * 76}, b"body", SECRET),
        (11, False, {**FIELDS, SIGNATURE_V2: "A" * 76}, b"body", SECRET),
        (11, False, {**FIELDS, SIGNATURE_V2: ""}, b"body", SECRET),
    ],
)
def test_anything_else_is_not_signed(
    code: int, one_way: bool, fields: dict[str, str], body: bytes, secret: str
) -> None:
    assert verified_stamp(code, one_way, fields, body, secret) is None


@given(texts, texts, st.binary(max_size=4), st.binary(max_size=4))
def test_two_requests_have_two_signatures(
    one: dict[str, str], other: dict[str, str], body: bytes, another: bytes
) -> None:
    for fields in (one, other):
        fields.pop("Signature", None)
        fields.pop(SIGNATURE_V2, None)
    same = (one, body) == (other, another)
    made = signature_v2(11, False, one, body, SECRET, STAMP)
    assert (made == signature_v2(11, False, other, another, SECRET, STAMP)) == same


def test_a_server_of_rocketmq_takes_both() -> None:
    """It looks at its own signature, which covers the field that it does not know."""
    both = sign(signed(), b"body", "admin", SECRET)
    assert verify(both, b"body", SECRET, 500)
    assert verified_stamp(11, False, both, b"body", SECRET) == STAMP
    without = {name: value for name, value in both.items() if name != SIGNATURE_V2}
    assert not verify(without, b"body", SECRET, 500)
