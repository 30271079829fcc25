from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerolox.errors import InvalidRequest, ProtocolError
from kerolox.protocol.hosts import host_bytes, host_text, ip_bytes, ip_text

IPV6 = bytes.fromhex("20010db8000000000000000000000001")


@pytest.mark.parametrize(
    ("text", "raw"),
    [
        ("127.0.0.1:10911", bytes.fromhex("7f00000100002a9f")),
        ("10.0.6.82:8123", bytes.fromhex("0a00065200001fbb")),
        ("0.0.0.0:0", bytes(8)),
        ("[2001:db8::1]:65535", IPV6 + b"\0\0\xff\xff"),
        ("[::1]:1", bytes(15) + b"\1\0\0\0\1"),
    ],
)
def test_both_ways(text: str, raw: bytes) -> None:
    assert host_bytes(text) == raw
    assert host_text(raw) == text


def test_an_ipv6_address_without_brackets_is_taken_up_to_the_last_colon() -> None:
    assert host_bytes("2001:db8::1:9876") == IPV6 + b"\0\0\x26\x94"


def test_ipv4_in_ipv6_clothes_is_ipv4() -> None:
    assert host_bytes("[::ffff:10.0.0.1]:80") == host_bytes("10.0.0.1:80")
    assert ip_text(bytes(10) + b"\xff\xff\x0a\0\0\x01") == "10.0.0.1"


def test_a_zone_is_left_out() -> None:
    assert host_bytes("[fe80::1%eth0]:80") == host_bytes("[fe80::1]:80")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "10.0.0.1",
        "10.0.0.1:",
        "10.0.0.1:65536",
        "10.0.0.1:-1",
        "10.0.0.1:٣",
        "broker:80",
        "1.2.3:4",
        "[::g]:1",
    ],
)
def test_what_is_no_address_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        host_bytes(text)
    assert repr(text.rpartition(":")[0].strip("[]"))[1:-1] in str(caught.value)


@pytest.mark.parametrize("length", [0, 7, 9, 19, 21])
def test_hosts_of_a_wrong_length(length: int) -> None:
    with pytest.raises(ProtocolError):
        host_text(bytes(length))
    with pytest.raises(ProtocolError):
        ip_text(bytes(length + 1 if length + 1 not in (4, 16) else 5))


@given(st.binary(min_size=4, max_size=4), st.integers(0, 65535))
def test_ipv4_round_trip(ip: bytes, port: int) -> None:
    raw = ip + port.to_bytes(4, "big")
    assert host_bytes(host_text(raw)) == raw


@given(st.ip_addresses(v=6).filter(lambda ip: ip.ipv4_mapped is None))
def test_ipv6_round_trip(ip: object) -> None:
    assert ip_text(ip_bytes(str(ip))) == str(ip)
