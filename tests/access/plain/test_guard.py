"""The guard with RocketMQ 4's accounts: who is let in, and to what."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, cast

import pytest

from kerolox.access.needs.names import SUB
from kerolox.access.options import AccessOptions, Audit
from kerolox.access.plain.files import AclFiles
from kerolox.access.plain.guard import ACL_EXCEPTION, NoPermission, PlainGuard
from kerolox.atomic_file import write_atomically
from kerolox.broker.remoting.signers import Signers
from kerolox.front.needs import Kind, Need, Resource
from kerolox.front.requests import Answer, Request
from kerolox.protocol.codes import RequestCode as Code
from kerolox.protocol.command import Command
from kerolox.protocol.header import Header, encode_fields
from kerolox.protocol.headers.admin import UpdateBrokerConfigRequest
from kerolox.protocol.headers.offset import ResetOffsetRequest
from kerolox.protocol.headers.query import QueryMessageRequest, ViewMessageRequest
from kerolox.protocol.headers.send import SendRequestV2
from kerolox.protocol.reserved import HALF_TOPIC
from kerolox.protocol.signature import UNIQUE_KEY_QUERY, sign
from kerolox.testing.clock import ManualClock
from tests.access.needs_kit import EMPTY, asked
from tests.served import BROKER

TEXT = """\
globalWhiteRemoteAddresses: [10.10.103.*]
accounts:
- accessKey: rocketmq1
  secretKey: secret of 1
  whiteRemoteAddress: 192.168.0.7
  defaultGroupPerm: SUB
  topicPerms: [out=PUB, in=SUB]
- accessKey: rocketmq2
  secretKey: secret of 2
  admin: true
"""
SECRETS = {"rocketmq1": "secret of 1", "rocketmq2": "secret of 2", "inner": "the servers' own"}
ELSEWHERE, WHITE, OWN_WHITE = "10.0.0.9", "10.10.103.5", "192.168.0.7"


class Caller:
    def __init__(self, host: str) -> None:
        self.address = f"{host}:4711"
        self.data: dict[str, Any] = {}
        self.answers: list[Answer] = []

    def answer(self, asked: Request[Any], answer: Answer) -> None:
        self.answers.append(answer)

    def proof(self, asked: Request[Any]) -> Command:
        return cast(Command, asked.ticket)


class Asking:
    """Asks a guard."""

    def __init__(self, guard: PlainGuard) -> None:
        self.guard = guard
        self.request: Request[Any] = asked(0)

    def __call__(
        self,
        code: int,
        header: Header | None = None,
        *,
        key: str = "",
        host: str = ELSEWHERE,
        secret: str | None = None,
        after_signing: dict[str, str] | None = None,
    ) -> str:
        """The remark of the refusal; empty when it was let in."""
        fields = {} if header is None else encode_fields(header)
        if key:
            fields = sign(fields, b"", key, SECRETS.get(key, "unknown") if secret is None else secret)
        self.request = asked(code, header, fields=fields | (after_signing or {}))
        caller = Caller(host)
        self.request.caller = caller  # type: ignore[assignment]
        if self.guard.admits(self.request) and self.guard.allows(self.request, BROKER.get(code)):
            assert not caller.answers
            return ""
        assert len(caller.answers) == 1
        assert caller.answers[0].code in (1, 16)
        return caller.answers[0].remark or ""


@pytest.fixture
async def ask(tmp_path: Path) -> Asking:
    path = tmp_path / "plain_acl.yml"
    path.write_text(TEXT)
    path.chmod(0o600)
    files = AclFiles(str(path), str(tmp_path / "acl"), ManualClock())
    await files.load()
    own = '{"accessKey": "inner", "secretKey": "the servers\' own"}'
    options = AccessOptions(inner_credentials=own)
    return Asking(PlainGuard(files, EMPTY, options, ManualClock()))


def send(topic: str = "out") -> SendRequestV2:
    return SendRequestV2(
        producer_group="p", topic=topic, default_topic="TBW102", default_topic_queue_nums=4, queue_id=0,
        sys_flag=0, born_timestamp=0, flag=0,
    )  # fmt: skip


RESET = ResetOffsetRequest(topic="in", group="g", timestamp=0, is_force=True)


def test_who_signs_is_known_and_held_to_its_permissions(ask: Asking) -> None:
    assert ask(Code.SEND_MESSAGE_V2, send(), key="rocketmq1") == ""
    assert ask.request.identity == "rocketmq1"
    refused = ask(Code.SEND_MESSAGE_V2, send("in"), key="rocketmq1")
    assert refused == f"{ACL_EXCEPTION}No permission for Topic:in: accessKey=rocketmq1"
    # Whether there is such a topic makes no difference.
    assert ask(Code.SEND_MESSAGE_V2, send("none"), key="rocketmq1") == refused.replace(
        "Topic:in", "Topic:none"
    )
    assert ask(Code.SEND_MESSAGE_V2, send("in"), key="rocketmq2") == ""


def test_strangers_hear_one_text(ask: Asking) -> None:
    said = {
        ask(Code.SEND_MESSAGE_V2, send()),
        ask(Code.SEND_MESSAGE_V2, send(), key="nobody"),
        ask(Code.SEND_MESSAGE_V2, send(), key="rocketmq1", secret="wrong"),
        ask(Code.SEND_MESSAGE_V2, send(), key="rocketmq1", after_signing={"b": "other"}),
        ask(99999, None, key="rocketmq1", secret="wrong"),
    }
    assert len(said) == 1
    assert said.pop().startswith(ACL_EXCEPTION)


def test_what_administers_is_for_administrators(ask: Asking) -> None:
    for code, header in (
        (Code.INVOKE_BROKER_TO_RESET_OFFSET, RESET),
        (Code.UPDATE_BROKER_CONFIG, UpdateBrokerConfigRequest()),
        (Code.CLEAN_UNUSED_TOPIC, None),
        (Code.UPDATE_AND_CREATE_ACL_CONFIG, None),
        (Code.GET_BROKER_CLUSTER_ACL_INFO, None),
        (99999, None),
    ):
        assert "Need admin permission" in ask(code, header, key="rocketmq1"), code
        assert ask(code, header, key="rocketmq2") == "", code
        assert ask(code, header, key="inner") == "", code
    assert ask(Code.GET_BROKER_RUNTIME_INFO, key="rocketmq1") == ""  # every account may look


def test_administration_comes_from_near(ask: Asking) -> None:
    assert "adminFrom" in ask(Code.CLEAN_UNUSED_TOPIC, key="rocketmq2", host="8.8.8.8")
    assert ask(Code.SEND_MESSAGE_V2, send(), key="rocketmq2", host="8.8.8.8") == ""


def test_white_addresses_need_no_signature(ask: Asking) -> None:
    assert ask(Code.SEND_MESSAGE_V2, send("any"), host=WHITE) == ""
    assert ask.request.identity is None
    assert ask(Code.CLEAN_UNUSED_TOPIC, host=WHITE) == ""
    ask.guard.check(ask.request, [Need(Resource(Kind.TOPIC, "any"), SUB)])
    # That of an account: for what it may and may not, but for administration.
    assert ask(Code.SEND_MESSAGE_V2, send("any"), key="rocketmq1", secret="wrong", host=OWN_WHITE) == ""
    assert ask.request.identity == "rocketmq1"
    assert "admin" in ask(Code.CLEAN_UNUSED_TOPIC, key="rocketmq1", secret="wrong", host=OWN_WHITE)
    assert ask(Code.SEND_MESSAGE_V2, send("any"), key="rocketmq2", secret="wrong", host=OWN_WHITE)
    assert ask(Code.SEND_MESSAGE_V2, send("any"), host=OWN_WHITE)


def test_no_address_is_enough_to_change_accounts(ask: Asking) -> None:
    """CVE-2024-23321: from a white address everybody could read all secrets and make accounts."""
    for code in (50, 51, 52, 53, 54):
        assert ask(code, host=WHITE).startswith(ACL_EXCEPTION + "access denied")
        assert ask(code, key="rocketmq1", secret="wrong", host=OWN_WHITE).startswith(ACL_EXCEPTION + "access")
        assert "Need admin permission" in ask(code, key="rocketmq1", host=WHITE)
        assert ask(code, key="rocketmq2", host=WHITE) == ""


@pytest.mark.parametrize("signed", [True, False])
def test_the_field_that_some_clients_sign_and_others_do_not(ask: Asking, signed: bool) -> None:
    query = QueryMessageRequest(
        topic="in",
        key="k",
        max_num=1,
        begin_timestamp=0,
        end_timestamp=1,
        unique_key=True if signed else None,
    )
    more = {} if signed else {UNIQUE_KEY_QUERY: "true"}
    assert ask(Code.QUERY_MESSAGE, query, key="rocketmq1", after_signing=more) == ""
    assert ask(Code.QUERY_MESSAGE, query, key="rocketmq1", after_signing=more, secret="wrong")


def test_what_handlers_find_later(ask: Asking) -> None:
    assert ask(Code.VIEW_MESSAGE_BY_ID, ViewMessageRequest(offset=0), key="rocketmq1") == ""
    ask.guard.check(ask.request, [Need(Resource(Kind.TOPIC, "in"), SUB)])
    with pytest.raises(NoPermission, match="Topic:out"):
        ask.guard.check(ask.request, [Need(Resource(Kind.TOPIC, "out"), SUB)])
    ask.guard.check_reading(ask.request, "in")
    ask.guard.check_ending(ask.request, "out")
    # Who may not have it does not hear whether it is there.
    with pytest.raises(NoPermission) as for_others:
        ask.guard.check_reading(ask.request, "out")
    with pytest.raises(NoPermission) as not_there:
        ask.guard.check_reading(ask.request, None)
    assert str(for_others.value) == str(not_there.value)
    with pytest.raises(NoPermission):
        ask.guard.check_ending(ask.request, "in")
    assert ask(Code.VIEW_MESSAGE_BY_ID, ViewMessageRequest(offset=0), key="rocketmq2") == ""
    ask.guard.check_reading(ask.request, None)
    ask.guard.check_reading(ask.request, "out")


def test_runs_of_plain_sends(ask: Asking) -> None:
    caller: Any = Caller(WHITE)
    assert ask.guard.may_send("rocketmq1", caller, "out")
    assert not ask.guard.may_send("rocketmq1", caller, "in")
    assert ask.guard.may_send("rocketmq2", caller, "in")
    assert ask.guard.may_send("rocketmq1", caller, "%RETRY%any")
    assert not ask.guard.may_send("rocketmq1", caller, HALF_TOPIC)
    assert Signers(ask.guard).of(caller) is None
    assert not ask.guard.may_send(None, caller, "out")
    assert ask.guard.may_publish(None, caller, "out")  # for who asks one by one
    assert not ask.guard.may_publish(None, cast(Any, Caller(ELSEWHERE)), "out")
    assert ask(Code.SEND_MESSAGE_V2, send(), key="rocketmq1") == ""
    found = Signers(ask.guard).of(ask.request.caller)
    assert found is not None
    assert {name: user.password for name, user in ask.guard.book.users.items()} == SECRETS


async def test_edits_count_at_once(ask: Asking) -> None:
    files, told = ask.guard.files, ask.guard.book.version
    text = TEXT.replace("10.10.103.*", "10.10.104.*").replace("out=PUB", "out=SUB")
    write_atomically(files.path, text.encode(), private=True)
    caller: Any = Caller(WHITE)
    assert ask.guard._is_white(caller)
    await files.look()
    assert not ask.guard._is_white(caller)
    assert ask.guard.book.version > told
    assert ask(Code.SEND_MESSAGE_V2, send(), key="rocketmq1")
    assert ask(Code.SEND_MESSAGE_V2, send(), host=WHITE)


def test_the_log_has_decisions_and_no_secrets(ask: Asking, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    ask.guard._options.audit = Audit.ALL
    assert not ask.guard.may_send("rocketmq1", cast(Any, Caller(ELSEWHERE)), "out")
    ask(Code.SEND_MESSAGE_V2, send(), key="rocketmq1")
    ask(Code.SEND_MESSAGE_V2, send("in"), key="rocketmq1")
    ask(Code.SEND_MESSAGE_V2, send(), key="rocketmq1", secret="wrong")
    ask(Code.SEND_MESSAGE_V2, send(), host=WHITE)
    words = [record.message.split()[0] for record in caplog.records]
    assert words == ["allowed", "refused", "not_known", "allowed"]
    assert "secret of" not in caplog.text


def test_a_signature_is_looked_at_also_for_accounts_that_are_not_there(
    ask: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How long a refusal takes tells nobody which accounts there are."""
    looked: list[str] = []

    def verify(fields: object, body: object, secret: str, version: int) -> bool:
        looked.append(secret)
        return False

    monkeypatch.setattr("kerolox.protocol.command.verify", verify)
    ask(Code.SEND_MESSAGE_V2, send(), key="nobody")
    ask(Code.SEND_MESSAGE_V2, send(), key="rocketmq1")
    assert len(looked) == 2
