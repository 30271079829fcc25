"""The keys of a message, found and hashed the short way, are those found and hashed the long way."""

from __future__ import annotations

from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from kerolox.protocol import properties as names
from kerolox.protocol.record_scan import Entry
from kerolox.store.dispatch.keys import KeyFiller
from kerolox.store.index.key_index import KeyIndex, hash_key
from kerolox.testing.clock import ManualClock


class Index:
    def __init__(self) -> None:
        self.put: list[tuple[int, int, int]] = []

    def put_many(self, items: list[tuple[int, int, int]]) -> None:
        self.put += items


HEADS = ["7F000001162E18B4AAC28E2F6D2A", "7F000001162E18B4AAC28E2F6D2B", "\u00e9" * 28]
unique = st.builds(
    lambda head, tail: head + tail,
    st.sampled_from(HEADS),
    st.text("0123456789ABCDEFé", min_size=3, max_size=5),
)
items = st.lists(
    st.one_of(
        st.tuples(st.just("UNIQ_KEY"), unique),
        st.tuples(st.just("KEYS"), st.sampled_from(["k1", "k1 k2", "a  b ", "schlüssel"])),
        st.tuples(
            st.sampled_from(["TAGS", "WAIT", "XKEY", "KEY"]), st.sampled_from(["t", "true", "UNIQ_KEY"])
        ),
    ),
    max_size=4,
)
messages = st.lists(st.tuples(st.sampled_from(["T", "Other"]), items, st.booleans()), max_size=20)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(messages, st.integers(1, 5))
def test_every_key_is_found_whatever_the_order_of_properties(sent: list[Any], batch: int) -> None:
    index = Index()
    filler = KeyFiller(cast(KeyIndex, index), ManualClock())
    expected: list[tuple[int, int, int]] = []
    entries: list[Entry] = []
    for number, (topic, pairs, ended) in enumerate(sent):
        packed = "".join(f"{name}\x01{value}\x02" for name, value in pairs).encode()
        if not ended:
            packed = packed.removesuffix(b"\x02")
        entries.append((100, 0, 0, number, number * 100, 0, 1000 + number, topic.encode(), packed))
        table = names.unpack(packed)
        keys = [table["UNIQ_KEY"]] if "UNIQ_KEY" in table else []
        keys += [key for key in table.get("KEYS", "").split(" ") if key]
        expected += [(hash_key(topic, key), number * 100, 1000 + number) for key in keys]
    for at in range(0, len(entries), batch):
        filler.fill(entries[at : at + batch])
    assert index.put == expected
