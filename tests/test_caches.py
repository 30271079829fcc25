"""Caches have a bound in bytes, whatever a peer sends."""

from __future__ import annotations

import ast
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

import kerolox
from kerolox.errors import InvalidRequest
from kerolox.protocol import header_binary, header_json
from kerolox.protocol.header_binary import encode_run
from kerolox.protocol.headers.send import SendRequestV2
from kerolox.protocol.hosts import host_bytes
from kerolox.protocol.properties import pack
from kerolox.protocol.record_scan import Entry
from kerolox.protocol.subscription import tag_hash
from kerolox.store.dispatch import entries as rule
from kerolox.store.index.key_index import KeyHasher

SOURCE = Path(kerolox.__file__).parent
MIB = 1 << 20

# Every lru_cache of the servers: entries, bytes of the longest key and value together.
LRU = {
    "protocol/subscription.py:_remembered_hash": (8192, 64 + 100),  # longer tags are not remembered
    "protocol/hosts.py:host_bytes": (4096, 100 + 200),
    "protocol/hosts.py:host_text": (4096, 20 + 200),
    "protocol/filters/bloom.py:murmur3": (4096, 2 * 255 + 100),  # group and topic
    "broker/write/pending_message.py:real_queue": (4096, 2 * 255 + 300),  # of topics there are
    "broker/later/timer_messages.py:_known_goal": (1024, 2 * 512 + 300),
    "broker/later/delay_levels.py:_known_queue": (1024, 2 * 512 + 300),
    "store/failures.py:decide": (10 * 8 * 200, 100),  # kinds, operations, error numbers
}


def lru_caches() -> set[str]:
    found = set()
    for part in ("protocol", "store", "broker", "net", "front", "access", "nameserver", "replication"):
        for path in (SOURCE / part).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                name = ""
                if isinstance(node, ast.FunctionDef):
                    words = [ast.unparse(one) for one in node.decorator_list]
                    name = node.name if any("cache" in word for word in words) else ""
                elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                    target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                    name = ast.unparse(target) if "lru_cache(" in ast.unparse(node.value) else ""
                if name:
                    found.add(f"{path.relative_to(SOURCE)}:{name}")
    return found


def test_every_cache_of_functions_is_known_and_small() -> None:
    assert lru_caches() == set(LRU)
    for name, (entries, size_bytes) in LRU.items():
        assert entries * size_bytes <= 8 * MIB, name


def kept_bytes(work: Callable[[], None]) -> int:
    """The bytes that stay after this work."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        work()
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


def entry(number: int, properties: bytes) -> Entry:
    return (100, 0, 0, number, number * 100, 0, 1_700_000_000_000, b"T", properties)


def test_long_tags_of_queue_entries_are_not_kept() -> None:
    """8,192 tags of 30 kB once kept 240 MiB."""

    def fill() -> None:
        for number in range(300):
            tagged = pack({"TAGS": f"{number:05d}" * 6000, "KEYS": "k"})
            rule._queue_runs([entry(0, tagged)], ())
            tag_hash(f"{number:05d}" * 6000)

    assert kept_bytes(fill) < MIB


def test_long_keys_of_binary_headers_are_not_kept() -> None:
    fields = {"a": "g", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0"}

    def fill() -> None:
        for number in range(300):
            raw = encode_run({**fields, "x" * (20_000 + number): "v"})
            header_binary.decode_header(raw, SendRequestV2)

    assert kept_bytes(fill) < MIB


def test_long_texts_are_not_kept_as_json() -> None:
    def fill() -> None:
        for number in range(60):
            header_json.quoted(f"{number}" * 50_000)

    assert kept_bytes(fill) < MIB


def test_heads_of_keys_are_bounded_over_all_topics() -> None:
    hasher = KeyHasher()
    for number in range(200_000):
        hasher.learn(b"topic%d" % (number // 1000), b"%028d0000" % number)
    assert sum(map(len, hasher._leading.values())) <= KeyHasher._LEARNED_MAX


def test_addresses_that_are_none_are_refused_short() -> None:
    with pytest.raises(InvalidRequest) as caught:
        host_bytes("[fe80::1%" + "z" * 100_000 + "]:1")
    assert len(str(caught.value)) < 300
