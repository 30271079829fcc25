"""Topics, groups, messages and progress that are made in the last moments before a fault."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.peers.wire import Answer, request

GET_ALL_TOPIC_CONFIG = 21
SEND_MESSAGE = 10
UPDATE_CONSUMER_OFFSET = 15
UPDATE_AND_CREATE_TOPIC = 17
GET_MAX_OFFSET = 30
GET_ALL_CONSUMER_OFFSET = 43
UPDATE_AND_CREATE_SUBSCRIPTIONGROUP = 200
GET_ALL_SUBSCRIPTIONGROUP_CONFIG = 201
ASK_S = 3.0
QUEUES = 3
RETRIES = 7
ATTRIBUTES = {"message.type": "FIFO"}


@dataclass
class Made:
    """What was answered with success, and so has to be at whoever leads: parts of one name."""

    name: str
    parts: set[str] = field(default_factory=set)


class Tables:
    """Makes things at a leader, and finds out whether a broker has them."""

    def __init__(self) -> None:
        self.made: list[Made] = []

    def make(self, leader: str) -> None:
        """Make a topic, a group, a message and progress; note what was acknowledged."""
        name = f"made-{len(self.made)}"
        made = Made(name)
        self.made.append(made)
        topic = {
            "topic": name, "defaultTopic": "TBW102", "readQueueNums": str(QUEUES), "perm": "6",
            "writeQueueNums": str(QUEUES), "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0",
            "order": "false", "attributes": "+message.type=FIFO",
        }  # fmt: skip
        if not _done(leader, UPDATE_AND_CREATE_TOPIC, topic):
            return
        made.parts.add("topic")
        group = {"groupName": name, "retryMaxTimes": RETRIES}
        if not _done(leader, UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, json.dumps(group).encode()):
            return
        made.parts.add("group")
        message = {
            "producerGroup": "makers", "topic": name, "defaultTopic": "TBW102", "defaultTopicQueueNums": "4",
            "queueId": "0", "sysFlag": "0", "bornTimestamp": "1700000000000", "flag": "0", "properties": "",
            "reconsumeTimes": "0", "unitMode": "false", "batch": "false",
        }  # fmt: skip
        if not _done(leader, SEND_MESSAGE, message, b"made"):
            return
        made.parts.add("message")
        progress = {"consumerGroup": name, "topic": name, "queueId": "0", "commitOffset": "1"}
        if _done(leader, UPDATE_CONSUMER_OFFSET, progress):
            made.parts.add("progress")

    def forget_progress(self) -> None:
        """Both brokers were killed: progress is saved by time, and what was not saved is consumed again."""
        for made in self.made:
            made.parts.discard("progress")

    def missing(self, address: str) -> list[str]:
        """What was acknowledged and a broker does not have."""
        topics = _table(address, GET_ALL_TOPIC_CONFIG, "topicConfigTable")
        groups = _table(address, GET_ALL_SUBSCRIPTIONGROUP_CONFIG, "subscriptionGroupTable")
        offsets = _table(address, GET_ALL_CONSUMER_OFFSET, "offsetTable")
        return [
            f"{part} {made.name} was acknowledged, and is not at {address}: {found}"
            for made in self.made
            for part, found in _lacking(made, address, topics, groups, offsets)
        ]


def _lacking(
    made: Made, address: str, topics: dict[str, Any], groups: dict[str, Any], offsets: dict[str, Any]
) -> Iterable[tuple[str, Any]]:
    topic, group = topics.get(made.name, {}), groups.get(made.name, {})
    progress = offsets.get(f"{made.name}@{made.name}", {})
    if "topic" in made.parts and (topic.get("readQueueNums"), topic.get("attributes")) != (
        QUEUES,
        ATTRIBUTES,
    ):
        yield "topic", topic
    if "group" in made.parts and group.get("retryMaxTimes") != RETRIES:
        yield "group", group
    if "progress" in made.parts and progress.get("0") != 1:
        yield "progress", progress
    if "message" in made.parts:
        asked = {"topic": made.name, "queueId": "0", "committed": "false"}
        answer = request(address, GET_MAX_OFFSET, asked, timeout=ASK_S)
        if answer.ext_fields.get("offset") != "1":
            yield "message", answer


def _done(address: str, code: int, fields: dict[str, str], body: bytes = b"") -> bool:
    """Whether it was answered with success, and no remark that there is no copy."""
    try:
        answer: Answer = request(address, code, fields, body, timeout=ASK_S)
    except OSError:
        return False
    return answer.code == 0 and not answer.remark


def _table(address: str, code: int, member: str) -> dict[str, Any]:
    body = request(address, code, timeout=ASK_S).body
    found: dict[str, Any] = json.loads(body)[member]
    return found
