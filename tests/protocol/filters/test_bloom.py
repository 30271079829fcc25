"""The bits of subscriptions. Sizes and places are what RocketMQ's filter gives."""

from __future__ import annotations

from kerolox.protocol.filters.bloom import BloomFilter, murmur3


def test_the_size_of_the_default_filter() -> None:
    filter = BloomFilter(20, 32)
    assert (filter.places, filter.bits, filter.size_bytes) == (3, 112, 14)


def test_the_hash_is_murmurs() -> None:
    assert murmur3(b"") == 0
    assert murmur3(b"hello") == 0xCBD8A7B341BD9B02
    assert murmur3(b"The quick brown fox jumps over the lazy dog") == 0xE34BBC7BBC071B6C


def test_bits_lie_the_small_end_first() -> None:
    filter = BloomFilter(20, 32)
    assert filter.packed(filter.with_bits((0, 9, 111))) == b"\x01\x02" + bytes(11) + b"\x80"
