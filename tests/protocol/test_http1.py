"""Heads of HTTP/1 requests, and answers."""

from __future__ import annotations

from base64 import b64encode

import pytest

from kerolox.protocol.http1 import (
    FIELDS_MAX,
    HttpError,
    check_no_body,
    encode_answer,
    parse_head,
)

START = b"GET /metrics?x=1 HTTP/1.1\r\n"


def basic(text: str) -> bytes:
    return b"Authorization: Basic " + b64encode(text.encode())


def test_a_head_has_method_path_and_fields() -> None:
    head = parse_head(START + b"Host: here\r\nACCEPT:text/plain ")
    assert (head.method, head.path, head.query) == ("GET", "/metrics", "x=1")
    assert head.fields == {"host": "here", "accept": "text/plain"}
    assert head.credentials == ("", "")


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"\x16\x03\x01", 400),
        (b"GET /page", 400),
        (b"GET /page HTTP/2", 400),
        (b"GET /a b HTTP/1.1", 400),
        (START + b"no field", 400),
        (START + b" continued: x", 400),
        (START + b"name : x", 400),
        (START + b": x", 400),
        (START + basic("a:b") + b"\r\n" + basic("c:d"), 400),
        (START + b"\r\n".join([b"a: b"] * (FIELDS_MAX + 1)), 431),
    ],
)
def test_what_is_no_head_is_rejected(head: bytes, status: int) -> None:
    with pytest.raises(HttpError) as error:
        parse_head(head)
    assert error.value.status == status


@pytest.mark.parametrize(
    ("text", "expected"), [("alice:her own", ("alice", "her own")), ("ü:a:b", ("ü", "a:b")), ("x", ("x", ""))]
)
def test_credentials(text: str, expected: tuple[str, str]) -> None:
    assert parse_head(START + basic(text)).credentials == expected


@pytest.mark.parametrize("value", [b"Basic !!", b"Basic /w=="])
def test_credentials_that_cannot_be_read(value: bytes) -> None:
    with pytest.raises(HttpError):
        _ = parse_head(START + b"Authorization: " + value).credentials
    assert parse_head(START + b"Authorization: Bearer x").credentials == ("", "")


@pytest.mark.parametrize(
    ("field", "allowed"),
    [(b"Content-Length: 0", True), (b"Content-Length: 1", False), (b"Transfer-Encoding: chunked", False)],
)
def test_requests_have_no_body(field: bytes, allowed: bool) -> None:
    head = parse_head(START + field)
    if allowed:
        check_no_body(head)
    else:
        with pytest.raises(HttpError) as error:
            check_no_body(head)
        assert error.value.status == 413


def test_an_answer_closes_the_connection() -> None:
    answer = encode_answer(401, "text/plain", b"hello", {"WWW-Authenticate": "Basic"})
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 401 Unauthorized\r\n")
    assert b"Content-Length: 5\r\n" in head
    assert b"Connection: close" in head
    assert b"WWW-Authenticate: Basic" in head
    assert body == b"hello"
    assert encode_answer(200, "text/plain", b"hello", with_body=False).endswith(b"\r\n\r\n")
