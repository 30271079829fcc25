"""All attacks on all codes of all ports, and what came of them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from kerolox.front.needs import Rule
from kerolox.protocol.codes import ResponseCode, request_name
from kerolox.protocol.command import Command

from . import followers_port, grpc_port
from .attackers import ATTACKS, Attack, make
from .requests import CODES, Names
from .wire import Cut, Line
from .world import FAR, NEAR, NOBODY, SECRET, VICTIM, Listener, World

LOOK_EVERY = 200  # attempts, after which it is looked whether anything has changed


@dataclass
class Outcome:
    attempts: int = 0
    by_attack: Counter[str] = field(default_factory=Counter)
    by_listener: Counter[str] = field(default_factory=Counter)
    for_everybody: Counter[str] = field(default_factory=Counter)  # answered, as every known user may ask it
    violations: list[str] = field(default_factory=list)

    def blame(self, text: str) -> None:
        self.violations.append(text)


async def attack_all(
    world: World,
    *,
    seed: int,
    codes: Iterable[int] = CODES,
    attacks: Iterable[Attack] = ATTACKS,
    at_followers: int = 5,
    progress: Callable[[str], None] = lambda text: None,
) -> Outcome:
    """Each attempt is made twice: about what is there, and about what is not. The answers must not differ.
    Those at the followers' port are made ``at_followers`` times each."""
    outcome, chance = Outcome(), random.Random(seed)
    before = world.known()
    for listener in world.listeners():
        for attack in attacks:
            async with Line(listener.address, FAR if attack.administers_only else NEAR) as line:
                for code in codes:
                    route = listener.handlers.routes.get(code)
                    rule = None if route is None else route.rule
                    if attack.administers_only and not (rule and rule.administers):
                        continue
                    answers = [
                        await _try(line, make(attack, code, names, 2 * outcome.attempts + number, chance))
                        for number, names in enumerate((VICTIM, NOBODY))
                    ]
                    _judge(outcome, listener, attack, code, rule, answers)
                    if outcome.attempts % LOOK_EVERY < 2:
                        before = _compare(outcome, before, world.known(), f"{listener.name}, {attack.name}")
        before = _compare(outcome, before, world.known(), listener.name)
        progress(f"{listener.name}: {outcome.attempts} attempts, {len(outcome.violations)} violations")
    count, wrong = await followers_port.attack_all(world.followers_address, at_followers)
    outcome.attempts += count
    outcome.by_listener[followers_port.NAME] += count
    outcome.violations += wrong
    before = _compare(outcome, before, world.known(), followers_port.NAME)
    count, wrong = await grpc_port.attack_all(world.broker.grpc_address)
    outcome.attempts += count
    outcome.by_listener[grpc_port.NAME] += count
    outcome.violations += wrong
    _compare(outcome, before, world.known(), grpc_port.NAME)
    return outcome


async def _try(line: Line, request: Command) -> Command | None:
    """The answer; None when there was none."""
    try:
        return await line.ask(request)
    except (Cut, TimeoutError):
        line.close()
        return None


def _judge(
    outcome: Outcome,
    listener: Listener,
    attack: Attack,
    code: int,
    rule: Rule | None,
    answers: list[Command | None],
) -> None:
    where = f"{listener.name}: {attack.name}: {request_name(code)} ({code})"
    outcome.attempts += len(answers)
    outcome.by_attack[attack.name] += len(answers)
    outcome.by_listener[listener.name] += len(answers)
    there, missing = answers
    if _seen(there, VICTIM) != _seen(missing, NOBODY):
        outcome.blame(
            f"{where}: tells what is there: {there!r} {_text(there)} / {missing!r} {_text(missing)}"
        )
    for answer in answers:
        if answer is None:
            outcome.blame(f"{where}: no answer")
        elif SECRET in answer.body:
            outcome.blame(f"{where}: shows the message")
        elif answer.code == ResponseCode.NO_PERMISSION:
            continue
        elif attack.is_known and rule is not None and rule.for_everybody and not attack.administers_only:
            outcome.for_everybody[request_name(code)] += 1
        else:
            outcome.blame(f"{where}: answered with {answer.code}: {_text(answer)}")


def _seen(answer: Command | None, names: Names) -> tuple[object, ...]:
    if answer is None:
        return ()
    body = names.hidden(answer.body.decode("utf-8", "replace"))
    return answer.code, names.hidden(answer.remark), names.hidden(str(sorted(answer.fields.items()))), body


def _text(answer: Command | None) -> str:
    return "" if answer is None else (answer.remark or "")[:200]


def _compare(outcome: Outcome, before: dict[str, str], after: dict[str, str], where: str) -> dict[str, str]:
    for part in before:
        if before[part] != after[part]:
            outcome.blame(f"{where}: {part} changed")
    return after
