"""Signing: what is sent is what brokers of every line accept."""

from __future__ import annotations

import pytest

from kerolox.client.calls.signing import finish_request
from kerolox.client.options import ClientOptions
from kerolox.protocol.codes import VERSION, VERSION_UNIQUE_KEY_UNSIGNED, RequestCode
from kerolox.protocol.command import Command, decode_command, request
from kerolox.protocol.frame import BINARY, JSON, FrameSplitter
from kerolox.protocol.headers.query import QueryMessageRequest
from kerolox.protocol.headers.topic import TopicStatsRequest
from kerolox.protocol.signature import UNIQUE_KEY_QUERY, signature, verify

pytestmark = pytest.mark.parametrize("encoding", [JSON, BINARY], ids=["json", "binary"])

QUERY = QueryMessageRequest(
    topic="t", key="k", max_num=1, begin_timestamp=0, end_timestamp=9, unique_key=True
)


def arrived(asked: Command) -> Command:
    (frame,) = FrameSplitter().feed(asked.encode())
    return decode_command(*frame)


def test_a_broker_finds_the_signature_right(encoding: int) -> None:
    asked = request(
        RequestCode.GET_TOPIC_STATS_INFO,
        TopicStatsRequest(topic="grün\u20ac"),
        b"\x00body",
        opaque=1,
        fields={"a": "\U0001f600", "B": ""},
        encoding=encoding,
    )
    finish_request(
        asked, ClientOptions(access_key="key", secret_key="secret", security_token="token", namespace_v2="ns")
    )
    got = arrived(asked)
    assert (got.fields["AccessKey"], got.fields["SecurityToken"]) == ("key", "token")
    assert (got.fields["nsd"], got.fields["ns"]) == ("true", "ns")
    assert got.version == VERSION
    assert verify(got.fields, got.body, "secret", got.version)
    assert not verify(got.fields, got.body, "Secret", got.version)
    assert not verify(got.fields, b"other", "secret", got.version)


def test_a_query_by_id_is_right_for_brokers_of_both_lines(encoding: int) -> None:
    asked = request(RequestCode.QUERY_MESSAGE, QUERY, opaque=1, encoding=encoding)
    finish_request(asked, ClientOptions(access_key="key", secret_key="secret"))
    got = arrived(asked)
    assert got.header(QueryMessageRequest) == QUERY
    assert got.version == VERSION_UNIQUE_KEY_UNSIGNED
    assert verify(got.fields, got.body, "secret", got.version)  # 5.x goes by the version
    fields = {name: value for name, value in got.fields.items() if name != UNIQUE_KEY_QUERY}
    assert signature(fields, got.body, "secret") == got.fields["Signature"]  # 4.x never counts it in
