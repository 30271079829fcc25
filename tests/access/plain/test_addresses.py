"""Patterns of addresses, as RocketMQ 4's files have them."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from kerolox.access.plain.addresses import matches_any, parse_addresses


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("*", "10.1.2.3 fe80::1", ""),
        ("*.*.*.*", "10.1.2.3 ::1", ""),
        ("*:*:*:*:*:*:*:*", "10.1.2.3 ::1", ""),
        ("", "", "10.1.2.3 ::1 0.0.0.0"),
        ("  ", "", "10.1.2.3"),
        ("10.1.2.3", "10.1.2.3", "10.1.2.4 ::10.1.2.3"),
        ("10.1.2.3,10.9.9.9", "10.1.2.3 10.9.9.9", "10.1.2.9"),
        ("10.1.2.{3,5}", "10.1.2.3 10.1.2.5", "10.1.2.4 10.1.2.35"),
        ("10.1.2.{3,5},10.9.9.9", "10.1.2.3 10.1.2.5 10.9.9.9", "10.1.2.9"),
        ("192.168.0.*", "192.168.0.0 192.168.0.255", "192.168.1.0 192.168.10.1"),
        ("192.168.*.*", "192.168.0.0 192.168.77.255", "192.169.0.0"),
        ("192.168.1-10.*", "192.168.1.7 192.168.10.7", "192.168.0.7 192.168.11.7"),
        ("192.168.1.20-30", "192.168.1.20 192.168.1.30", "192.168.1.19 192.168.1.31"),
        ("10.*.0.1", "10.7.0.1", "10.7.7.7 11.7.0.1"),  # RocketMQ compares nothing behind the star
        ("fe80::1", "fe80::1 FE80:0:0::1", "fe80::2"),
        ("1050:0:0:0:5:600:300c:{1,2}", "1050::5:600:300c:1", "1050::5:600:300c:3"),
        ("1050::5:600:300c:1-20", "1050::5:600:300c:1f", "1050::5:600:300c:21"),
        ("fe80:1:*", "fe80:1:2:3:4:5:6:7 fe80:1::", "fe80:2:2:3:4:5:6:7 254.128.1.1"),
    ],
)
def test_who_is_inside(text: str, inside: str, outside: str) -> None:
    patterns = parse_addresses(text)
    assert [one for one in inside.split() if not matches_any(patterns, ip_address(one))] == []
    assert [one for one in outside.split() if matches_any(patterns, ip_address(one))] == []


def test_who_has_no_address_is_nowhere() -> None:
    assert not matches_any(parse_addresses("*"), None)


@pytest.mark.parametrize(
    "text",
    [
        "host", "10.1.2", "10.1.2.3.4", "10.1.2.256", "10.1.2.300-400", "10.1.2.9-3", "10.1.2.-3", "*.1.2.3",
        "10.1.2.{3", "10.1.2.{}", "10.1.{2,3}x.1", "10.1.*", "fe80:1", "1:2:3:4:5:6:7:8:*", "fe80::g",
        "1::2::*", "10.1.2.3/24",
    ],
)  # fmt: skip
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not an address"):
        parse_addresses(text)
