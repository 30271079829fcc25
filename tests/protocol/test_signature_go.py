"""Requests as RocketMQ's Go client signed them: fields in no order, in JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kerolox.protocol.command import Command, decode_command
from kerolox.protocol.frame import JSON
from kerolox.protocol.signature import ACCESS_KEY, signer, verify

RECORDED = json.loads((Path(__file__).parent.parent / "data" / "go_signed_requests.json").read_text("utf-8"))
SECRET = RECORDED["secretKey"]


def read(code: str) -> Command:
    frame = bytes.fromhex(RECORDED["frames"][code])
    end = 8 + int.from_bytes(frame[5:8])
    return decode_command(JSON, frame[8:end], frame[end:])


@pytest.mark.parametrize("code", RECORDED["frames"])
def test_what_go_signed_verifies(code: str) -> None:
    request = read(code)
    assert request.code == int(code)
    assert request.fields[ACCESS_KEY] == RECORDED["accessKey"]
    assert verify(request.fields, request.body, SECRET, request.version)
    assert signer(RECORDED["accessKey"], SECRET).has_signed(request.fields, request.body)
    assert not verify(request.fields, request.body + b"x", SECRET, request.version)
    assert not verify(request.fields, request.body, SECRET + "x", request.version)


def test_the_body_of_a_send_is_signed() -> None:
    request = read("10")
    assert request.body == "go 0 é".encode()
    assert not verify(request.fields, b"go 1 " + "é".encode(), SECRET, request.version)
