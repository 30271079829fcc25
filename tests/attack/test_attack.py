"""Attacks on a part of the codes, and that one that gets through is found. ``make attack`` tries them all."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec

from kerolox.protocol.codes import RequestCode

from .attackers import ATTACKS
from .requests import CODES, fields_of
from .story import attack_all
from .world import VICTIM, running_world

# The messages themselves, users and settings; of the others each run of the gate tries the same few.
ALWAYS = (
    *(RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE),
    *(RequestCode.PULL_MESSAGE, RequestCode.VIEW_MESSAGE_BY_ID, RequestCode.END_TRANSACTION),
    *(RequestCode.AUTH_CREATE_USER, RequestCode.AUTH_LIST_USER, RequestCode.UPDATE_BROKER_CONFIG),
    RequestCode.WATCH_TABLES,
)


async def test_nobody_gets_through(tmp_path: Path) -> None:
    some = random.Random(16).sample(CODES, 20)
    async with running_world(tmp_path) as world:
        for listener in world.listeners():  # or their requests would be refused for what they lack
            for code, route in listener.handlers.routes.items():
                fields = () if route.header is None else msgspec.structs.fields(route.header)
                needed = {field.encode_name for field in fields if field.required}
                assert needed <= fields_of(code, VICTIM).keys()
        outcome = await attack_all(world, seed=16, codes=(*ALWAYS, *some), at_followers=1)
    assert outcome.violations == []
    assert outcome.attempts > 2000
    assert len(outcome.by_attack) == len(ATTACKS)


async def test_an_attack_that_succeeds_is_found(tmp_path: Path) -> None:
    """A code that needs no signature here: the checker has to see what that lets in."""
    sends = int(RequestCode.SEND_MESSAGE)
    open_to_all = f"{sends},{int(RequestCode.SEND_MESSAGE_V2)}"
    async with running_world(
        tmp_path, unauthenticated_codes=open_to_all, unauthorized_codes=open_to_all
    ) as world:
        outcome = await attack_all(world, seed=16, codes=(sends,), attacks=ATTACKS[:1], at_followers=1)
    assert any("unsigned: SEND_MESSAGE" in text for text in outcome.violations)
    assert any("log changed" in text for text in outcome.violations)
    assert any("gRPC port: unsigned: SendMessage" in text for text in outcome.violations)
