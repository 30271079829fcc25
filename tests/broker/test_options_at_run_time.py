"""Options that may change while the broker runs reach the code that reads them."""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

import kerolox
from kerolox.broker.options import BrokerOptions
from kerolox.net.dialer import Dialer
from kerolox.options import specs
from kerolox.protocol import reserved
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import Command
from kerolox.protocol.headers.admin import UpdateBrokerConfigRequest
from kerolox.testing.broker import running_broker
from tests.broker.talk import Talk, until

SOURCE = Path(kerolox.__file__).parent
PARTS = ("broker", "store", "replication", "net", "front", "access")
# Called once, when a part begins to work: what they read there does not change any more.
AT_THE_START = {"__init__", "<module>", "open", "_open", "start", "bind", "create_system_topics", "lanes_of"}
CHANGEABLE = sorted(spec.name for spec in specs(BrokerOptions) if spec.changeable)


@cache
def readers() -> dict[str, list[tuple[str, int, bool]]]:
    """Where options are read: file, line, and whether that is done while the broker runs."""
    found: dict[str, list[tuple[str, int, bool]]] = defaultdict(list)

    def walk(node: ast.AST, path: str, function: str, later: bool) -> None:
        for child in ast.iter_child_nodes(node):
            inner, is_later = function, later
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                inner = child.name
                is_later = inner not in AT_THE_START
            elif isinstance(child, ast.Lambda):
                is_later = True
            elif isinstance(child, ast.Attribute):
                owner = ast.unparse(child.value)
                if owner.endswith(("options", "settings", "_settings")):
                    found[child.attr].append((path, child.lineno, is_later))
            walk(child, path, inner, is_later)

    for part in PARTS:
        for path in (SOURCE / part).rglob("*.py"):
            if path.name != "options.py":
                walk(ast.parse(path.read_text()), str(path.relative_to(SOURCE)), "<module>", False)
    return found


# Read at the start as well, by code that other readers keep in step.
KEPT_IN_STEP = {
    "auto_create_topics": "Broker.options_changed",  # makes the template
    "default_topic_queues": "Broker.options_changed",
    "broker_id": "BrokerAdmin._change_role",  # a role is taken, not only set
}


@pytest.mark.parametrize("name", CHANGEABLE)
def test_every_changeable_option_is_read_while_the_broker_runs(name: str) -> None:
    places = readers()[name]
    assert any(later for *_, later in places), f"{name} is read nowhere, or only at the start: {places}"
    if name not in KEPT_IN_STEP:
        frozen = [f"{path}:{line}" for path, line, later in places if not later]
        assert not frozen, f"{name} can change, and is read once only, at {', '.join(frozen)}"


async def change(talk: Talk, **settings: object) -> None:
    body = "".join(f"{key}={value}\n" for key, value in settings.items()).encode()
    answer = await talk.dialer.call(
        talk.address, RequestCode.UPDATE_BROKER_CONFIG, UpdateBrokerConfigRequest(), body
    )
    assert answer.code == 0, answer.remark


async def sent(talk: Talk, topic: str, **properties: str) -> tuple[str, str]:
    """What the answer to a send and the stored message say of tracing."""
    answer: Command = await talk.send(topic, properties=properties)
    assert answer.code == 0, answer.remark
    message = (await talk.messages(topic))[-1]
    return answer.fields["TRACE_ON"], message.properties["TRACE_ON"]


async def test_tracing_ends_at_once_for_sends_of_every_form() -> None:
    async with running_broker() as running, Dialer() as dialer:
        talk = Talk(dialer, running)
        plain, special = {"UNIQ_KEY": "A" * 32}, {"UNIQ_KEY": "A" * 32, "__TRANSACTION": "x"}
        for told in ("true", "false", "true"):
            await change(talk, traceOn=told)
            for properties in (plain, special):
                for _ in range(2):  # the first makes its queue known to runs
                    assert await sent(talk, "T", **properties) == (told, told)


async def test_topics_are_created_once_that_is_allowed() -> None:
    async with running_broker(auto_create_topics=False) as running, Dialer() as dialer:
        talk = Talk(dialer, running)
        assert (await talk.send("early")).code != 0
        await change(talk, autoCreateTopicEnable="true", defaultTopicQueueNums=3)
        assert (await talk.send("later", default_topic_queue_nums=16)).code == 0
        config = running.broker.tables.topics.find("later")
        assert config is not None
        assert config.write_queue_nums == 3
        await change(talk, defaultTopicQueueNums=5)
        assert (await talk.send("latest", default_topic_queue_nums=16)).code == 0
        config = running.broker.tables.topics.find("latest")
        assert config is not None
        assert config.write_queue_nums == 5
        assert running.broker.tables.topics.is_system(reserved.TEMPLATE_TOPIC)


async def test_members_are_looked_for_once_locks_are_strict() -> None:
    async with running_broker(members_ms=10) as running, Dialer() as dialer:
        talk = Talk(dialer, running)
        looks = running.broker.fellowship.watch
        assert looks.looks == 0
        await change(talk, lockInStrictMode="true")
        await until(lambda: looks.looks > 0)
