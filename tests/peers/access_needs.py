"""What requests need, by our tables and by Apache's classes: every code, with all fields and with the least,
about plain topics and about those of retries and dead letters."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from kerolox.errors import KeroloxError
from kerolox.protocol.codes import request_name
from kerolox.protocol.header import decode_fields
from tests.served import BROKER, CONTROLLER, NAMESERVER, REQUEST_HEADERS, Rules

from ..access.needs_kit import CLUSTER, SmallView, asked
from .driver import JavaDriver

TOPIC, GROUP, PRODUCERS = "orders", "readers", "writers"
NAMES = {
    "topic": TOPIC, "b": TOPIC, "originTopic": TOPIC, "topicList": f"{TOPIC};more", "parentTopic": TOPIC,
    "consumerGroup": GROUP, "group": GROUP, "groupName": GROUP, "compareGroup": GROUP,
    "producerGroup": PRODUCERS, "a": PRODUCERS, "srcGroup": "source", "destGroup": "destination",
    "clusterName": CLUSTER, "cluster": CLUSTER, "brokerClusterName": CLUSTER, "username": "alice",
    "subject": "User:alice", "topicFilterType": "SINGLE_TAG",
}  # fmt: skip
TOPIC_FIELDS = ("topic", "b")
# Codes that ours serves without a header of its own: what Apache's could read.
OTHER_FIELDS = {
    **{name: NAMES[name] for name in ("topic", "parentTopic", "consumerGroup", "group", "producerGroup")},
    "clientId": "c", "liteTopic": "l", "invisibleTime": "1", "maxMsgNum": "1", "pollTime": "1",
    "bornTime": "1", "attemptId": "1", "topK": "1", "order": "true",
}  # fmt: skip
OTHER_CODES = range(200070, 200080)

TOPICS = {
    "a topic": TOPIC,
    "the retry topic of the group": f"%RETRY%{GROUP}",
    "the retry topic of another group": "%RETRY%others",
    "a POP retry topic": f"%RETRY%{GROUP}+{TOPIC}",
    "an old POP retry topic": f"%RETRY%{GROUP}_{TOPIC}",
    "dead letters": f"%DLQ%{GROUP}",
    "a topic of the servers": "rmq_sys_wheel_timer",
}

SMALL = SmallView()
KNOWS_ALL = SmallView((TOPIC, "more"), (GROUP,))


def _body(code: int, topic: str) -> dict[str, Any] | None:
    queue = {"topic": topic, "brokerName": "b", "queueId": 0}
    subscription = {"topic": topic, "subString": "*", "expressionType": "TAG"}
    both = {"consumerGroup": GROUP, "topic": topic}
    ack = {"c": GROUP, "t": topic, "r": "0", "so": 0, "q": 0, "rq": 0, "pt": 0, "it": 0, "b": ""}
    return {
        18: {"topicConfigList": [{"topicName": topic}, {"topicName": "more"}]},
        34: {
            "clientID": "c", "producerDataSet": [{"groupName": PRODUCERS}],
            "consumerDataSet": [{"groupName": GROUP, "subscriptionDataSet": [subscription]}],
        },
        41: {"consumerGroup": GROUP, "clientId": "c", "mqSet": [queue]},
        42: {"consumerGroup": GROUP, "clientId": "c", "mqSet": [queue]},
        46: {"clientId": "c", "group": GROUP, "subscriptionData": subscription},
        200: {"groupName": GROUP},
        225: {"groupConfigList": [{"groupName": GROUP}, {"groupName": "others"}]},
        400: both | {"clientId": "c"},
        401: both | {"mode": "POP"},
        200071: {"group": GROUP, "topic": topic, "clientId": "c", "action": "PARTIAL_ADD"},
        200151: {"brokerName": "b", "acks": [ack]},
    }.get(code)  # fmt: skip


class Asked(NamedTuple):
    """One request, as text."""

    code: int
    what: str
    fields: dict[str, str]
    body: bytes
    view: SmallView

    @property
    def name(self) -> str:
        return f"{self.code} {request_name(self.code)}"

    def as_json(self) -> dict[str, Any]:
        body = base64.b64encode(self.body).decode() if self.body else None
        # Every request that is looked at has been signed.
        return {"code": self.code, "fields": {"AccessKey": "alice", **self.fields}, "body": body}


def requests(rules: Rules) -> Iterator[Asked]:
    for code in sorted(rules):
        every, least = _fields(code)
        with_topic = [name for name in TOPIC_FIELDS if name in every]
        body = _body(code, TOPIC)
        for what, topic in TOPICS.items():
            if topic != TOPIC and not with_topic and (body is None or TOPIC not in json.dumps(body)):
                continue
            renamed = dict.fromkeys(with_topic, topic)
            raw = json.dumps(_body(code, topic)).encode() if body is not None else b""
            yield Asked(code, what, every | renamed, raw, SMALL)
            yield Asked(code, f"{what} that is known", every | renamed, raw, KNOWS_ALL)
        if least != every:
            yield Asked(code, "the least", least, raw if body is not None else b"", SMALL)


def _fields(code: int) -> tuple[dict[str, str], dict[str, str]]:
    header = REQUEST_HEADERS.get(code)
    if header is None:
        return (OTHER_FIELDS, OTHER_FIELDS) if code in OTHER_CODES else ({}, {})
    every, least = {}, {}
    for each in msgspec.structs.fields(header):
        kind = str(each.type)
        if "BoundaryType" in kind:
            continue
        name = each.encode_name
        value = "true" if "bool" in kind else "1" if "int" in kind else NAMES.get(name, "x")
        every[name] = value
        if each.required:
            least[name] = value
    return every, least


# --- comparison -----------------------------------------------------------------------------------------

Needs = dict[str, frozenset[str]]  # by resource, one of the actions


def ours(request: Asked, rules: Rules) -> Needs | str:
    try:
        header = REQUEST_HEADERS.get(request.code)
        made = None if header is None else decode_fields(request.fields, header)
        seen = asked(request.code, made, request.body, fields=request.fields)
        found = list(rules[request.code].needs(seen, request.view))
    except KeroloxError as error:
        return str(error)
    return _table((str(need.resource), frozenset(action.value for action in need.actions)) for need in found)


def _table(found: Iterator[tuple[str, frozenset[str]]]) -> Needs:
    table: Needs = {}
    for resource, actions in found:
        # Two needs of one resource, one of many actions and one of few: the few decide.
        table[resource] = table[resource] & actions if resource in table else actions
    return table


def apaches(driver: JavaDriver, asked: list[Asked]) -> list[Needs | str]:
    answers = driver.call(
        "access.contexts", cluster=CLUSTER, requests=[each.as_json() for each in asked], timeout=120.0
    )
    return [
        answer
        if isinstance(answer, str)
        else _table((need["resource"], frozenset(need["actions"])) for need in answer)
        for answer in answers
    ]


def is_stricter(mine: Needs, theirs: Needs) -> bool:
    """Whether who may by ours may by theirs."""
    return all(resource in mine and mine[resource] <= actions for resource, actions in theirs.items())


# Where who may by ours might not by Apache's: why, of which codes and topics (of all, where none is named).
OTHERWISE: dict[str, tuple[tuple[int, ...], tuple[str, ...]]] = {
    "dead letters belong to their group": ((), ("dead letters",)),
    "what POP tries again belongs to its group and its topic": ((), ("a POP retry", "an old POP retry")),
    "topics of the servers belong to who looks after the cluster": ((), ("a topic of the servers",)),
    "retries belong to their group, whatever is done": ((12, 37, 370), ("the retry topic",)),
    "who may consume may look": ((29, 30, 31, 32, 33), ()),
    "a topic that is there is changed, not made": ((17,), ("a topic that is known",)),
    "what is not said has a usual value": ((17, 1002), ("the least",)),
    "about the broker, not a topic": ((323, 354), ()),
    "not served: heard by who looks after the cluster": ((200073,), ()),
}  # fmt: skip


def _name(code: int, what: str) -> str | None:
    for name, (codes, whats) in OTHERWISE.items():
        if (not codes or code in codes) and (not whats or what.startswith(whats)):
            return name
    return None


@dataclass
class Comparison:
    codes: int = 0
    requests: int = 0
    equal: set[int] = field(default_factory=set)  # codes
    stricter: dict[str, dict[str, Any]] = field(default_factory=dict)  # by code and topic
    otherwise: dict[str, list[int]] = field(default_factory=dict)  # codes by reason
    unnamed: list[dict[str, Any]] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return {
            "codes": self.codes, "requests": self.requests, "equal": sorted(self.equal),
            "stricter": self.stricter, "otherwise": self.otherwise, "unnamed_differences": self.unnamed,
        }  # fmt: skip


def compare(driver: JavaDriver, rules: Rules) -> Comparison:
    result = Comparison(codes=len(rules))
    every = list(requests(rules))
    differs = set()
    for request, theirs in zip(every, apaches(driver, every), strict=True):
        mine = ours(request, rules)
        result.requests += 1
        if mine == theirs or (isinstance(mine, str) and isinstance(theirs, str)):
            continue
        differs.add(request.code)
        shown = {"ours": _text(mine), "apache": _text(theirs)}
        if isinstance(mine, str) or (not isinstance(theirs, str) and is_stricter(mine, theirs)):
            known = result.stricter.setdefault(request.name, {})
            if shown not in known.values():
                known[request.what] = shown
        elif (name := _name(request.code, request.what)) is not None:
            codes = result.otherwise.setdefault(name, [])
            if request.code not in codes:
                codes.append(request.code)
        else:
            result.unnamed.append({"request": request.name, "what": request.what} | shown)
    result.equal = {int(code) for code in rules} - differs
    return result


def _text(needs: Needs | str) -> list[str] | str:
    if isinstance(needs, str):
        return needs
    return [f"{'/'.join(sorted(actions))} on {resource}" for resource, actions in sorted(needs.items())]


# What Apache's name server and controller would ask: they ask nothing, whatever their classes say.
SERVERS = {"broker": BROKER, "name server": NAMESERVER, "controller": CONTROLLER}
