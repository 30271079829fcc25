"""Settings of consumer groups, created at the first use, and topics that groups may not read."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import msgspec

from kerolox.broker import names
from kerolox.broker.bounds import FORBIDDEN_MAX, GROUP_BYTES_MAX, too_many
from kerolox.broker.members.members import ConsumerMembers, Members
from kerolox.broker.options import BrokerOptions
from kerolox.clock import Clock, TimerHandle
from kerolox.errors import InvalidRequest, Refused
from kerolox.observers import Observers
from kerolox.protocol.bodies.groups import WHY_DISABLED, GroupConfig
from kerolox.protocol.bodies.topics import DataVersion
from kerolox.protocol.codes import ResponseCode
from kerolox.protocol.flags import PERM_READ
from kerolox.protocol.limits import GROUP_LENGTH_MAX
from kerolox.protocol.reserved import SYSTEM_GROUP_PREFIX, SYSTEM_GROUPS
from kerolox.store.log.cursors import LIGHT_PREFIX
from kerolox.store.tables.groups import GroupTable
from kerolox.unsaved import Save, Unsaved

log = logging.getLogger(__name__)

SLOW_CHECK_S = 180.0


# State of a group: its settings, and its permissions by topic.
Before = tuple[GroupConfig | None, dict[str, int]]


class Groups:
    """The table of groups with its rules. ``on_change`` is called with the name of each changed group.

    A requested change is being saved while ``unsaved`` names the group, and is undone if the save fails.
    Automatic changes promise nothing: a group created by its first use has default settings, and its next use
    creates it again.
    """

    def __init__(
        self, table: GroupTable, members: Members, options: BrokerOptions, save: Save | None
    ) -> None:
        self.table = table
        self.unsaved: Unsaved[str, Before] = Unsaved(self._put_back, save)
        self.on_change: Observers[[str]] = Observers("group changed")
        # called with a group that may consume again
        self.on_enabled: Observers[[str]] = Observers("group enabled")
        self._members = members
        self._options = options
        self._light = options.light_queues

    @property
    def disabled(self) -> dict[str, str]:
        """Groups that the broker itself disabled, with the reason."""
        return {
            name: config.attributes[WHY_DISABLED]
            for name, config in self.table.groups.items()
            if WHY_DISABLED in config.attributes
        }

    def find(self, group: str) -> GroupConfig | None:
        config = self.table.groups.get(group)
        if config is None and self._light and group.startswith(LIGHT_PREFIX):
            return GroupConfig(group_name=group)  # groups of light queues have default settings
        return config

    def known(self, group: str, remark: str) -> GroupConfig:
        """Return the settings of a group. Raise Refused with this remark if it does not exist."""
        config = self.find(group)
        if config is None:
            raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        return config

    def config(self, group: str) -> GroupConfig | None:
        """Return the settings of a group; create them if the group is new and that is allowed."""
        config = self.find(group)
        if config is not None:
            return config
        # System groups are always created when needed.
        if not self._options.auto_create_groups and not group.startswith(SYSTEM_GROUP_PREFIX):
            return None
        if not names.group_allowed(group):
            return None
        self.check_room(group)
        config = GroupConfig(group_name=group)
        self.table.put(config)
        log.info("group_created group=%r reason='first use'", group)
        self._changed(group)
        return config

    def check_room(self, *groups: str) -> None:
        """Raise if new groups would exceed ``maxGroups``."""
        known = self.table.groups
        new = sum(group not in known for group in groups)
        if new and len(known) + new > self._options.groups_max:
            raise too_many(f"consumer groups, {len(known)}", "maxGroups", self._options.groups_max)

    def members(self, group: str) -> ConsumerMembers | None:
        return self._members.members(group)

    def put(self, config: GroupConfig) -> bool:
        """Create a group, or replace its settings. Only the named attributes change.

        Return False if nothing changed.
        """
        group = config.group_name
        check_group(group)
        if self._light and group.startswith(LIGHT_PREFIX):
            return False
        before = self.table.groups.get(group)
        # Tools send back all settings they read. The reason for the disabling is kept until the group is
        # enabled.
        asked = {key: value for key, value in config.attributes.items() if key != WHY_DISABLED}
        attributes = _altered(None if before is None else before.attributes, asked)
        if config.consume_enable:
            attributes.pop(WHY_DISABLED, None)
        wanted = msgspec.structs.replace(config, attributes=attributes)
        size_bytes = len(wanted.encode())
        if size_bytes > GROUP_BYTES_MAX:
            raise InvalidRequest(
                f"the settings of group {group} have {size_bytes} bytes, the limit is {GROUP_BYTES_MAX} "
                "(GROUP_BYTES_MAX)"
            )
        self.check_room(group)
        whole = self._whole(group)
        if not self.table.put(wanted):
            return False
        if config.consume_enable and before is not None and not before.consume_enable:
            self.on_enabled(group)
        log.info("group_%s group=%r", "created" if before is None else "changed", group)
        self._changed(group)
        self.unsaved.changed(group, whole)
        return True

    def remove(self, group: str) -> bool:
        """Remove the settings of a group. Its progress is in another table."""
        known = group in self.table.groups or group in self.table.forbidden
        whole = self._whole(group)
        self.table.remove(group)
        if known:
            log.info("group_removed group=%r", group)
            self._changed(group)
            self.unsaved.changed(group, whole)
        return known

    def is_forbidden(self, group: str, topic: str) -> bool:
        """True if the group may not read the topic."""
        if not self.table.forbidden:
            return False
        return bool(self.table.forbidden.get(group, {}).get(topic, 0) & PERM_READ)

    def set_readable(self, group: str, topic: str, readable: bool) -> None:
        """Allow or forbid the group to read the topic."""
        bits = self.table.forbidden.get(group, {}).get(topic, 0)
        new = bits & ~PERM_READ if readable else bits | PERM_READ
        if new == bits:
            return
        if not bits:
            check_group(group)
            names.check_topic(topic)
            if sum(map(len, self.table.forbidden.values())) >= FORBIDDEN_MAX:
                raise too_many("topics that groups may not read", "FORBIDDEN_MAX", FORBIDDEN_MAX)
        whole = self._whole(group)
        self.table.forbid(group, topic, new)
        log.info("group_%s group=%r topic=%r", "allowed" if readable else "forbidden", group, topic)
        self._changed(group)
        self.unsaved.changed(group, whole)

    def disable(self, group: str, reason: str) -> bool:
        """Forbid the group to consume until its settings change. Return False if it is disabled already."""
        config = self.table.groups.get(group)
        if config is None or not config.consume_enable:
            return False
        attributes = {**config.attributes, WHY_DISABLED: reason}
        self.table.put(msgspec.structs.replace(config, consume_enable=False, attributes=attributes))
        log.warning(
            "group_disabled group=%r reason=%r next='speed up its consumers or skip messages (kerolox group "
            "reset %s TOPIC --to latest), then enable it: kerolox group enable %s'",
            group,
            reason,
            group,
            group,
        )
        self._changed(group)
        return True

    def follow(
        self,
        groups: Mapping[str, GroupConfig],
        version: DataVersion,
        forbidden: Mapping[str, Mapping[str, int]],
    ) -> None:
        """Replace the groups by the leader's. System groups are kept."""
        own = {name: config for name, config in self.table.groups.items() if name in SYSTEM_GROUPS}
        self.table.replace({**own, **groups}, version, forbidden)

    def _whole(self, group: str) -> Before:
        return self.table.groups.get(group), dict(self.table.forbidden.get(group, {}))

    def _put_back(self, group: str, before: Before | None) -> None:
        config, forbidden = before or (None, {})
        self.table.remove(group)
        if config is not None:
            self.table.put(config)
        for topic, bits in forbidden.items():
            self.table.forbid(group, topic, bits)
        log.warning("group_change_undone group=%r", group)
        self._changed(group)

    def _changed(self, group: str) -> None:
        self.on_change(group)


class SlowGroups:
    """Disabling of groups that are too far behind, whose reads would evict the messages of all others from
    memory.

    Done only if the option is set. ``fall_behind`` returns the bytes that each group is behind.
    """

    def __init__(
        self,
        groups: Groups,
        fall_behind: Callable[[], Mapping[str, int]],
        options: BrokerOptions,
        clock: Clock,
    ) -> None:
        self._groups = groups
        self._fall_behind = fall_behind
        self._options = options
        self._clock = clock
        self._timer: TimerHandle | None = None

    def start(self) -> None:
        if self._timer is None:
            self._timer = self._clock.beat(SLOW_CHECK_S, self._look)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def check(self) -> list[str]:
        """Disable groups that are too far behind. Return their names."""
        if not self._options.disable_slow_groups:
            return []
        limit = self._options.slow_group_bytes
        return [
            group
            for group, behind in self._fall_behind().items()
            if behind > limit
            and self._groups.disable(
                group, f"{behind} bytes behind, the limit is {limit} (consumerFallbehindThreshold)"
            )
        ]

    def _look(self) -> None:
        self._timer = self._clock.beat(SLOW_CHECK_S, self._look)
        self.check()


def check_group(group: str) -> None:
    """Raise InvalidRequest for an invalid group name."""
    if not group.strip():
        raise InvalidRequest("The specified group is blank.")
    if len(group) > GROUP_LENGTH_MAX:
        raise InvalidRequest(
            f"The specified group is {len(group)} characters long, the limit is {GROUP_LENGTH_MAX}."
        )
    if not names.group_allowed(group):
        raise InvalidRequest(
            f"The specified group {group!r} contains illegal characters, allowing only %|a-zA-Z0-9_-"
        )


def _altered(before: Mapping[str, str] | None, asked: Mapping[str, str]) -> dict[str, str]:
    """Return the attributes after ``+key`` set and ``-key`` removed some."""
    after = dict(before or {})
    for key, value in asked.items():
        sign, name = key[:1], key[1:]
        if not name or "+" in name or "-" in name:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"attribute {key!r}: expected +name or -name")
        if sign == "+":
            after[name] = value
        elif sign == "-" and before is not None and name in before:
            del after[name]
        elif sign == "-":
            raise Refused(ResponseCode.SYSTEM_ERROR, f"attempt to delete a nonexistent key: {name}")
        else:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"attribute {key!r}: expected +{key} or -{key}")
    return after
