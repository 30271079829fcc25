"""Topics, groups, users, messages and progress that are made in the last moments before a fault."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from kerolox.protocol.codes import RequestCode
from kerolox.protocol.signature import sign
from kerolox.testing.access import ADMIN, INNER
from tests.peers.wire import Answer, request

ASK_S = 3.0
QUEUES = 3
RETRIES = 7
ATTRIBUTES = {"message.type": "FIFO"}
# The settings of brokers that have users: without authentication followers do not copy them. All that is not
# about users needs no signature.
WITH_USERS: dict[str, object] = {
    "authenticationEnabled": "true",
    "tls.server.mode": "disabled",
    "initAuthenticationUser": json.dumps({"username": ADMIN.access_key, "password": ADMIN.secret_key}),
    "innerClientAuthenticationCredentials": json.dumps(
        {"accessKey": INNER.access_key, "secretKey": INNER.secret_key}
    ),
    "authenticationWhitelist": ",".join(
        str(int(code)) for code in RequestCode if not code.name.startswith("AUTH_")
    ),
}


@dataclass
class Made:
    """What was answered with success, and so has to be at whoever leads: parts of one name."""

    name: str
    parts: set[str] = field(default_factory=set)

    @property
    def password(self) -> str:
        return f"the secret of {self.name}"

    @property
    def subject(self) -> str:
        return f"User:{self.name}"


class Tables:
    """Makes things at a leader, and finds out whether a broker has them."""

    def __init__(self) -> None:
        self.made: list[Made] = []

    def make(self, leader: str, *, progress: bool = True) -> None:
        """Make a topic, a group, a user with a rule, a message and progress; note what was acknowledged. It
        ends with the first thing that was not."""
        made = Made(f"made-{len(self.made)}")
        self.made.append(made)
        for part, (code, fields, body) in _requests(made).items():
            if part == "progress" and not progress:
                return
            if not _done(leader, code, fields, body):
                return
            made.parts.add(part)

    def forget_progress(self) -> None:
        """All brokers were killed: progress is saved by time, and what was not saved is consumed again."""
        for made in self.made:
            made.parts.discard("progress")

    def missing(self, address: str) -> list[str]:
        """What was acknowledged and a broker does not have. Raises OSError."""
        topics = _table(address, RequestCode.GET_ALL_TOPIC_CONFIG)["topicConfigTable"]
        groups = _table(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)["subscriptionGroupTable"]
        offsets = _table(address, RequestCode.GET_ALL_CONSUMER_OFFSET)["offsetTable"]
        users = {one["username"]: one for one in _table(address, RequestCode.AUTH_LIST_USER)}
        rules = {one["subject"]: one for one in _table(address, RequestCode.AUTH_LIST_ACL)}
        has = {"topic": topics, "group": groups, "progress": offsets, "user": users, "rule": rules}
        return [
            f"{part} {made.name} was acknowledged, and is not at {address}: {found}"
            for made in self.made
            for part, found in _lacking(made, address, has)
        ]


def _requests(made: Made) -> dict[str, tuple[RequestCode, dict[str, str], bytes]]:
    """What makes each part, in this order."""
    name = made.name
    topic = {
        "topic": name, "defaultTopic": "TBW102", "readQueueNums": str(QUEUES), "perm": "6",
        "writeQueueNums": str(QUEUES), "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0",
        "order": "false", "attributes": "+message.type=FIFO",
    }  # fmt: skip
    group = {"groupName": name, "retryMaxTimes": RETRIES}
    user = {"username": name, "password": made.password, "userType": "Normal"}
    entry = {"resource": f"Topic:{name}", "actions": ["Pub"], "decision": "Allow"}
    rules = {"subject": made.subject, "policies": [{"policyType": "Custom", "entries": [entry]}]}
    message = {
        "producerGroup": "makers", "topic": name, "defaultTopic": "TBW102", "defaultTopicQueueNums": "4",
        "queueId": "0", "sysFlag": "0", "bornTimestamp": "1700000000000", "flag": "0", "properties": "",
        "reconsumeTimes": "0", "unitMode": "false", "batch": "false",
    }  # fmt: skip
    progress = {"consumerGroup": name, "topic": name, "queueId": "0", "commitOffset": "1"}
    return {
        "topic": (RequestCode.UPDATE_AND_CREATE_TOPIC, topic, b""),
        "group": (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, json.dumps(group).encode()),
        "user": (RequestCode.AUTH_CREATE_USER, {"username": name}, json.dumps(user).encode()),
        "rule": (RequestCode.AUTH_CREATE_ACL, {"subject": made.subject}, json.dumps(rules).encode()),
        "message": (RequestCode.SEND_MESSAGE, message, b"made"),
        "progress": (RequestCode.UPDATE_CONSUMER_OFFSET, progress, b""),
    }


def _lacking(made: Made, address: str, has: dict[str, dict[str, Any]]) -> Iterable[tuple[str, Any]]:
    topic, group, user = (has[what].get(made.name, {}) for what in ("topic", "group", "user"))
    progress = has["progress"].get(f"{made.name}@{made.name}", {})
    is_there = {
        "topic": (topic.get("readQueueNums"), topic.get("attributes")) == (QUEUES, ATTRIBUTES),
        "group": group.get("retryMaxTimes") == RETRIES,
        "user": user.get("password") == made.password,
        "rule": made.subject in has["rule"],
        "progress": progress.get("0") == 1,
    }
    found = {"topic": topic, "group": group, "user": user, "progress": progress}
    for part, there in is_there.items():
        if part in made.parts and not there:
            yield part, found.get(part)
    if "message" in made.parts:
        asked = {"topic": made.name, "queueId": "0", "committed": "false"}
        answer = request(address, RequestCode.GET_MAX_OFFSET, asked, timeout=ASK_S)
        if answer.ext_fields.get("offset") != "1":
            yield "message", answer


def _done(address: str, code: RequestCode, fields: dict[str, str], body: bytes) -> bool:
    """Whether it was answered with success, and no remark that there is no copy."""
    try:
        answer = _ask(address, code, fields, body)
    except OSError:
        return False
    return answer.code == 0 and not answer.remark


def _table(address: str, code: RequestCode) -> Any:
    answer = _ask(address, code, {}, b"")
    assert answer.code == 0, f"{address} does not answer {code.name}: {answer}"
    return json.loads(answer.body or b"[]")


def _ask(address: str, code: RequestCode, fields: dict[str, str], body: bytes) -> Answer:
    """As the administrator, where users are asked about."""
    if code.name.startswith("AUTH_"):
        fields = {**fields, **sign(fields, body, ADMIN.access_key, ADMIN.secret_key)}
    return request(address, code, fields, body, timeout=ASK_S)
