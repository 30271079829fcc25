"""One request for every code: as a client that means harm would make it, about somebody's topic and group."""

from __future__ import annotations

import types
import typing
from dataclasses import dataclass
from typing import Any

import msgspec

from kerolox.protocol.bodies import access as access_bodies
from kerolox.protocol.bodies.groups import GroupConfig
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.header import spelling
from tests.served import REQUEST_HEADERS


@dataclass(frozen=True)
class Names:
    """What a request is about."""

    topic: str
    group: str
    user: str

    def hidden(self, text: str | None) -> str:
        """A text without these names: what is left must not depend on whether they exist."""
        found = text or ""
        for name in sorted((self.topic, self.group, self.user), key=len, reverse=True):
            found = found.replace(name, "~")
        return found


UNKNOWN_CODES = (0, 9, 999, 31_337, 2**31 - 1)
CODES = (*map(int, RequestCode), *UNKNOWN_CODES)


def fields_of(code: int, names: Names) -> dict[str, str]:
    """A header with every field filled in."""
    header = REQUEST_HEADERS.get(code)
    if header is None:
        return {"topic": names.topic, "consumerGroup": names.group}
    hints = typing.get_type_hints(header)
    return {wire: _value(name, hints[name], names) for name, wire in spelling(header)}


def _value(name: str, kind: Any, names: Names) -> str:
    if name == "default_topic":
        return "TBW102"
    if "topic" in name and _kind(kind) is str:
        return names.topic
    if "group" in name and _kind(kind) is str:
        return names.group
    if name == "subject":
        return f"User:{names.user}"
    if name == "username":
        return names.user
    if name == "properties":
        return "UNIQ_KEY\x01AC110001000000000000000000000001\x02"
    if "properties" in name or name == "attributes":
        return ""
    if name == "resource":
        return f"Topic:{names.topic}"
    if "subscription" in name:
        return "*"
    if _kind(kind) is bool:
        return "false"
    if _kind(kind) is int:
        return "0"
    return "x"


def _kind(kind: Any) -> Any:
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
        kind = next(arm for arm in typing.get_args(kind) if arm is not type(None))
    if typing.get_origin(kind) is typing.Annotated:
        kind = typing.get_args(kind)[0]
    return kind


def body_of(code: int, names: Names) -> bytes:
    """A body of the shape that the code has, where it has one."""
    made = _BODIES.get(code)
    if made is None:
        return b"stolen" if code in _WITH_MESSAGES else b""
    return msgspec.json.encode(made(names)) if not isinstance(found := made(names), bytes) else found


def _subscription(names: Names) -> dict[str, Any]:
    return {"topic": names.topic, "subString": "*", "subVersion": 1, "expressionType": "TAG"}


def _consumer(names: Names) -> dict[str, Any]:
    return {
        "groupName": names.group,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "subscriptionDataSet": [_subscription(names)],
    }


def _queues(names: Names) -> dict[str, Any]:
    return {
        "consumerGroup": names.group,
        "clientId": "mallory@1",
        "mqSet": [{"brokerName": "broker-a", "queueId": 0, "topic": names.topic}],
    }


def _user(names: Names) -> dict[str, Any]:
    return {"username": names.user, "password": "taken over", "userType": "Super", "userStatus": "enable"}


def _rules(names: Names) -> bytes:
    entry = access_bodies.AclEntry(actions=("All",), decision="Allow", resource="*")
    policy = access_bodies.AclPolicy(entries=(entry,), policy_type="Custom")
    return access_bodies.Acl(policies=(policy,), subject=f"User:{names.user}").encode()


def _topic_config(names: Names) -> dict[str, Any]:
    return {"topicName": names.topic, "readQueueNums": 16, "writeQueueNums": 16, "perm": 6}


_C = RequestCode
_WITH_MESSAGES = {_C.SEND_MESSAGE, _C.SEND_MESSAGE_V2, _C.SEND_REPLY_MESSAGE, _C.SEND_REPLY_MESSAGE_V2}
_BODIES: dict[int, Any] = {
    _C.SEND_BATCH_MESSAGE: lambda names: bytes(
        (0, 0, 0, 27, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5, 104, 101, 108, 108, 111, 0, 0)
    ),
    _C.HEART_BEAT: lambda names: {
        "clientID": "mallory@1", "consumerDataSet": [_consumer(names)], "producerDataSet": []
    },
    _C.CHECK_CLIENT_CONFIG: lambda names: {
        "clientId": "mallory@1", "group": names.group, "subscriptionData": _subscription(names)
    },
    _C.LOCK_BATCH_MQ: _queues,
    _C.UNLOCK_BATCH_MQ: _queues,
    _C.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: lambda names: GroupConfig(
        group_name=names.group, consume_enable=False
    ).encode(),
    _C.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: lambda names: {
        "groupConfigList": [{"groupName": names.group, "consumeEnable": False}]
    },
    _C.UPDATE_AND_CREATE_TOPIC_LIST: lambda names: {"topicConfigList": [_topic_config(names)]},
    _C.UPDATE_BROKER_CONFIG: lambda names: b"fileReservedTime=1\nbrokerPermission=0\n",
    _C.UPDATE_NAMESRV_CONFIG: lambda names: b"orderMessageEnable=true\n",
    _C.UPDATE_CONTROLLER_CONFIG: lambda names: b"enableElectUncleanMaster=true\n",
    _C.AUTH_CREATE_USER: _user,
    _C.AUTH_UPDATE_USER: _user,
    _C.AUTH_CREATE_ACL: _rules,
    _C.AUTH_UPDATE_ACL: _rules,
    _C.SET_MESSAGE_REQUEST_MODE: lambda names: {
        "topic": names.topic, "consumerGroup": names.group, "mode": "PULL", "popShareQueueNum": 0
    },
    _C.QUERY_ASSIGNMENT: lambda names: {
        "topic": names.topic, "consumerGroup": names.group, "clientId": "mallory@1",
        "strategyName": "AVG", "messageModel": "CLUSTERING",
    },
    _C.BATCH_ACK_MESSAGE: lambda names: {"brokerName": "broker-a", "acks": []},
    _C.CONTROLLER_ALTER_SYNC_STATE_SET: lambda names: {"syncStateSet": [9], "syncStateSetEpoch": 99},
    _C.CONTROLLER_GET_SYNC_STATE_DATA: lambda names: ["broker-a"],
}  # fmt: skip
