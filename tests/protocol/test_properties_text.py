"""Java's properties syntax, read and written."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kerolox.errors import ProtocolError
from kerolox.protocol.bodies.properties_text import edit_properties, read_properties, write_properties


def test_reads_properties_as_java_does() -> None:
    text = (
        "# a comment\n  ! another = one\r\n\n"
        "brokerName = broker-a\n"
        "namesrvAddr:10.0.0.1:9876;10.0.0.2:9876\r"
        "\tspaced value with spaces \n"
        "joined=1,\\\n   2,\\\n\t3\n"
        "odd\\=key\\:\\ x=v\n"
        "path=c:\\\\data\\tx\n"
        "unicode=\\u00e9\\ud83d\\ude00\\q\n"
        "empty=\nalone\n"
        "twice=1\ntwice=2\n"
        "even=a\\\\\n"
        "last=end\\"
    )
    assert read_properties(text) == {
        "brokerName": "broker-a",
        "namesrvAddr": "10.0.0.1:9876;10.0.0.2:9876",
        "spaced": "value with spaces ",
        "joined": "1,2,3",
        "odd=key: x": "v",
        "path": "c:\\data\tx",
        "unicode": "é\U0001f600q",
        "empty": "",
        "alone": "",
        "twice": "2",
        "even": "a\\",
        "last": "end",
    }


def test_properties_of_bytes() -> None:
    assert read_properties("k=é".encode()) == {"k": "é"}
    assert read_properties("k=é".encode("latin-1")) == {"k": "é"}
    assert read_properties(b"") == {}


@pytest.mark.parametrize("text", ["k=\\u12", "a=1\nk\\uzzzz=1"])
def test_broken_unicode_escapes(text: str) -> None:
    with pytest.raises(ProtocolError, match="properties line"):
        read_properties(text)


def test_writes_plain_lines() -> None:
    written = write_properties({"listenPort": 9876, "on": True, "addr": "a:1;b:2", "gone": None, "s": " x y"})
    assert written == "listenPort=9876\non=true\naddr=a:1;b:2\ns=\\ x y\n"


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"])), st.text(st.characters(exclude_categories=["Cs"]))
    )
)
def test_properties_round_trip(table: dict[str, str]) -> None:
    written = write_properties(table)
    assert written.isascii()
    assert read_properties(written) == table
    assert read_properties(written.encode()) == table


@settings(max_examples=100, deadline=None)
@given(st.text() | st.binary())
def test_any_properties_are_read_or_refused(text: str | bytes) -> None:
    try:
        read_properties(text)
    except ProtocolError:
        pass


def test_an_edit_keeps_comments_order_and_other_settings() -> None:
    text = (
        b"# brokers of the shop\r\nbrokerName = broker-a\r\n\r\n! old value: 72\r\nfileReservedTime: 48\r\n"
        b"joined=1,\\\r\n  2\r\nfileReservedTime=24\r\nmine=1\r\n\r\n"
    )
    edited = edit_properties(text, {"fileReservedTime": 12, "joined": "3", "traceOn": False})
    assert edited == (
        b"# brokers of the shop\r\nbrokerName = broker-a\r\n\r\n! old value: 72\r\n"
        b"joined=3\r\nfileReservedTime=12\r\nmine=1\r\ntraceOn=false\r\n"
    )
    assert edit_properties(b"", {"a": 1}) == b"a=1\n"
    assert edit_properties("# é\nk=é".encode("latin-1"), {"a": 1}) == "# é\nk=é\na=1\n".encode("latin-1")


@settings(max_examples=100, deadline=None)
@given(st.binary(), st.dictionaries(st.text(st.characters(codec="ascii")), st.text(), max_size=3))
def test_an_edit_changes_what_it_names_and_nothing_else(text: bytes, changes: dict[str, str]) -> None:
    try:
        before = read_properties(text)
    except ProtocolError:
        return
    if any("\ud800" <= letter <= "\udfff" for value in changes.values() for letter in value):
        return
    assert read_properties(edit_properties(text, changes)) == before | changes
