from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerolox.errors import InvalidRequest
from kerolox.protocol.hosts import host_bytes
from kerolox.protocol.message_id import (
    UniqueKeys,
    month_of,
    offset_id,
    offset_id_prefix,
    read_offset_id,
    read_unique_key,
)

BROKER = host_bytes("10.0.0.1:10911")
BROKER_IPV6 = host_bytes("[2001:db8::1]:10911")
EAST = timezone(timedelta(hours=8))


def ms(*when: int, zone: timezone = UTC) -> int:
    return round(datetime(*when, tzinfo=zone).timestamp() * 1000)  # type: ignore[misc, arg-type]


def test_known_offset_ids() -> None:
    assert offset_id(BROKER, 1024) == "0A00000100002A9F0000000000000400"
    assert offset_id(host_bytes("127.0.0.1:10911"), 1024) == "7F00000100002A9F0000000000000400"
    assert offset_id(host_bytes("10.0.6.82:8123"), 0) == "0A00065200001FBB0000000000000000"
    assert offset_id(BROKER_IPV6, 1) == "20010DB800000000000000000000000100002A9F0000000000000001"


def test_prefix_and_offset_make_the_id() -> None:
    assert f"{offset_id_prefix(BROKER)}{1024:016X}" == offset_id(BROKER, 1024)


@given(st.sampled_from([BROKER, BROKER_IPV6]), st.integers(-(2**63), 2**63 - 1))
def test_offset_id_round_trip(host: bytes, offset: int) -> None:
    text = offset_id(host, offset)
    assert read_offset_id(text) == (host, offset)
    assert read_offset_id(text.lower()) == (host, offset)


@pytest.mark.parametrize("text", ["", "0" * 31, "0" * 33, "0" * 55, "G" * 32, "0 " * 16, "٣" * 32])
def test_what_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="offset message id"):
        read_offset_id(text)
    with pytest.raises(InvalidRequest, match="unique key"):
        read_unique_key(text)


def test_unique_key_layout() -> None:
    now = ms(2024, 3, 2, 0, 0, 1)
    keys = UniqueKeys(b"\x7f\0\0\x01", 0x1_0C5C, 0x18B4AAC2, lambda: now, UTC)
    day_and_second = 86_401_000
    assert keys.next() == f"7F0000010C5C18B4AAC2{day_and_second:08X}0000"
    assert keys.next() == f"7F0000010C5C18B4AAC2{day_and_second:08X}0001"


def test_unique_key_of_an_ipv6_host_is_longer() -> None:
    keys = UniqueKeys(BROKER_IPV6[:16], 1, -1, lambda: ms(2024, 3, 1), UTC)
    key = keys.next()
    assert len(key) == 56
    assert read_unique_key(key) == (BROKER_IPV6[:16], 1, -1, 0, 0)


def test_some_keys_at_once_are_what_one_after_the_other_gives() -> None:
    one, many = (UniqueKeys(bytes(4), 1, 1, lambda: ms(2024, 3, 1), UTC) for _ in range(2))
    for count in (1, 2, 300, 65_000, 1000, 1):
        assert many.some(count) == [one.next() for _ in range(count)]


def test_the_counter_starts_again_after_sixteen_bits() -> None:
    keys = UniqueKeys(bytes(4), 1, 1, lambda: ms(2024, 3, 1), UTC)
    made = [keys.next() for _ in range(65537)]
    assert made[65535].endswith("FFFF")
    assert made[65536] == made[0]


def test_the_month_rolls_over_and_small_clock_steps_count_as_zero() -> None:
    now = [ms(2024, 12, 31, 23, 59, 59)]
    keys = UniqueKeys(bytes(4), 1, 1, lambda: now[0], UTC)
    assert read_unique_key(keys.next()).since_month_ms == 31 * 86_400_000 - 1000
    now[0] = ms(2025, 1, 1)
    assert read_unique_key(keys.next()).since_month_ms == 0
    now[0] -= 999_999
    assert read_unique_key(keys.next()).since_month_ms == 0
    now[0] -= 1
    assert read_unique_key(keys.next()).since_month_ms == 2**32 - 1_000_000


def test_months_begin_at_local_midnight() -> None:
    moment = ms(2024, 2, 29, 20)
    assert month_of(moment, UTC) == (ms(2024, 2, 1), ms(2024, 3, 1))
    assert month_of(moment, EAST) == (ms(2024, 3, 1, zone=EAST), ms(2024, 4, 1, zone=EAST))
    start, after = month_of(moment)
    assert start <= moment < after


def test_when_a_key_was_made() -> None:
    made = ms(2024, 2, 20, 10)
    key = read_unique_key(UniqueKeys(bytes(4), 1, 1, lambda: made, UTC).next())
    assert key.made_at_ms(made + 5, UTC) == made
    assert key.made_at_ms(ms(2024, 3, 5), UTC) == made


def test_times_out_of_the_calendar_and_bad_addresses_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="calendar"):
        month_of(2**63, UTC)
    with pytest.raises(InvalidRequest, match="5 bytes"):
        UniqueKeys(bytes(5), 1, 1, lambda: 0, UTC)
