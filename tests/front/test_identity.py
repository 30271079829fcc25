"""The guard decides about callers of any door, by the proof that the door has for them."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kerolox.access.guard import NOT_KNOWN
from kerolox.access.options import FormTwoUse
from kerolox.front.proof import NoProof, Proof
from kerolox.protocol.bodies import access as bodies
from kerolox.protocol.codes import RequestCode as Code
from kerolox.protocol.codes import ResponseCode
from kerolox.protocol.headers.send import SendRequestV2
from kerolox.protocol.headers.topic import TopicConfigRequest
from kerolox.testing.broker import RunningBroker, running_broker

from ..broker.talk import send_fields
from .direct_door import DirectDoor, Known, Password

ROOT = '{"username": "root", "password": "the root\'s own"}'
STRANGERS = [NoProof(), Password("alice", "guessed"), Password("nobody", "x"), Known("nobody")]


def settings(path: Path, **more: Any) -> dict[str, Any]:
    return {
        "directory": path, "authentication": True, "authorization": True, "first_user": ROOT, **more
    }  # fmt: skip


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[RunningBroker]:
    async with running_broker(**settings(tmp_path)) as running:
        book = running.broker.access.book
        book.create_user(bodies.User(username="alice", password="her own"))
        entry = bodies.AclEntry(actions=("Pub",), decision="Allow", resource="Topic:T")
        book.merge_rules("User:alice", bodies.Acl(policies=(bodies.AclPolicy(entries=(entry,)),)))
        yield running


async def send(door: DirectDoor, proof: Proof, topic: str = "T") -> tuple[int, str | None]:
    header = SendRequestV2(**send_fields(topic))
    answer = await door.caller(proof=proof).ask(Code.SEND_MESSAGE_V2, header, b"hello")
    return answer.code, answer.remark


@pytest.mark.parametrize("proof", [Password("alice", "her own"), Known("alice")], ids=["password", "known"])
async def test_users_do_what_their_policies_allow(running: RunningBroker, proof: Proof) -> None:
    door = DirectDoor(running.broker)
    assert (await send(door, proof))[0] == ResponseCode.SUCCESS
    code, text = await send(door, proof, "U")
    assert code == ResponseCode.NO_PERMISSION
    assert "User:alice has no permission to access Topic:U" in (text or "")
    asked = TopicConfigRequest(topic="T")
    assert (await door.caller(proof=proof).ask(Code.GET_TOPIC_CONFIG, asked)).code == 16


async def test_strangers_get_one_answer_and_the_log_has_the_reason(
    running: RunningBroker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kerolox.access.audit")
    door = DirectDoor(running.broker)
    for proof in STRANGERS:
        assert await send(door, proof) == (ResponseCode.NO_PERMISSION, NOT_KNOWN)
    for why in ("no access key", "no such user", "wrong signature"):
        assert why in caplog.text
    assert "name='alice'" in caplog.text
    assert "guessed" not in caplog.text


async def test_proofs_of_unknown_users_are_checked_too(running: RunningBroker) -> None:
    """The time of the answer must not reveal which users exist."""
    checked: list[str] = []

    class Watched(Password):
        def holds(self, secret: str, /, *, any_release: bool = False) -> bool:
            checked.append(secret)
            return super().holds(secret)

    await send(DirectDoor(running.broker), Watched("nobody", "x"))
    assert len(checked) == 1


async def test_where_each_request_needs_a_stamp_a_password_is_not_enough(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kerolox.access.audit")
    async with running_broker(**settings(tmp_path, form_2=FormTwoUse.ALL)) as running:
        door = DirectDoor(running.broker)
        assert await send(door, Password("root", "the root's own")) == (16, NOT_KNOWN)
    assert "name='root' why='signatureV2 requires" in caplog.text
