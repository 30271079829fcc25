"""Names, and the namespace before them."""

from __future__ import annotations

import pytest

from kerolox.client.errors import InvalidMessage
from kerolox.client.ids import client_id, unique_keys
from kerolox.client.names import check_group, check_topic_for_sending, with_namespace, without_namespace
from kerolox.client.options import ClientOptions
from kerolox.errors import OptionError


@pytest.mark.parametrize(
    ("name", "wire"),
    [
        ("orders", "ns%orders"),
        ("ns%orders", "ns%orders"),
        ("%RETRY%billing", "%RETRY%ns%billing"),
        ("%DLQ%billing", "%DLQ%ns%billing"),
        ("%RETRY%ns%billing", "%RETRY%ns%billing"),
        ("RMQ_SYS_TRACE_TOPIC", "RMQ_SYS_TRACE_TOPIC"),
        ("rmq_sys_wheel_timer", "rmq_sys_wheel_timer"),
        ("CID_RMQ_SYS_x", "CID_RMQ_SYS_x"),
    ],
)
def test_namespaces_go_before_names_once(name: str, wire: str) -> None:
    assert with_namespace("ns", name) == wire
    assert without_namespace("ns", wire) == name.replace("ns%", "")
    assert with_namespace("", name) == name


@pytest.mark.parametrize(
    "topic", ["", " ", "a b", "a.b", "x" * 128, "SCHEDULE_TOPIC_XXXX", "rmq_sys_REVIVE_LOG_c"]
)
def test_topics_that_cannot_be_sent_to(topic: str) -> None:
    with pytest.raises(InvalidMessage):
        check_topic_for_sending(topic)


def test_topics_that_can() -> None:
    check_topic_for_sending("x" * 127)
    check_topic_for_sending("%RETRY%" + "x" * 200)
    check_topic_for_sending("a-b_C%9|")


@pytest.mark.parametrize("group", ["", "a b", "x" * 121, "DEFAULT_PRODUCER"])
def test_groups_that_cannot_be(group: str) -> None:
    with pytest.raises(OptionError):
        check_group(group)


def test_client_ids() -> None:
    ip, instance = client_id().split("@")
    assert ip
    assert instance.partition("#")[0].isdigit()
    assert client_id() != client_id()
    assert client_id("mine", "unit").split("@")[1:] == ["mine", "unit"]
    assert client_id(stable=True, tail="STREAM").split("@")[1:] == ["DEFAULT", "STREAM"]


def test_unique_keys_do_not_repeat() -> None:
    keys = {unique_keys().next() for _ in range(1000)}
    assert len(keys) == 1000
    assert {len(key) for key in keys} <= {32, 56}


def test_options_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OptionError, match="secret_key"):
        ClientOptions("a:1", access_key="x")
    with pytest.raises(OptionError, match="heartbeat_s"):
        ClientOptions("a:1", heartbeat_s=0)
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    with pytest.raises(OptionError, match="NAMESRV_ADDR"):
        ClientOptions().addresses()
    monkeypatch.setenv("NAMESRV_ADDR", "a:1;b:2")
    assert ClientOptions().addresses() == ["a:1", "b:2"]
    assert ClientOptions(["c:3", "d:4"]).addresses() == ["c:3", "d:4"]
