"""Role in the settings: the role at the start, and the role that changed settings ask for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from kerolox.broker.options import BrokerOptions, BrokerRole
from kerolox.errors import OptionError, Refused
from kerolox.options import specs
from kerolox.protocol.codes import ResponseCode

ROLE_KEYS = frozenset({"brokerRole", "brokerId"})


class RoleChange(NamedTuple):
    """Role to take while the broker runs. Leaders have no id, whatever the settings are."""

    role: BrokerRole
    follower_id: int

    @property
    def leads(self) -> bool:
        return self.role is not BrokerRole.SLAVE

    @property
    def settings(self) -> dict[str, str]:
        return {"brokerRole": self.role.value, "brokerId": str(self.follower_id)}


def role_at_start(options: BrokerOptions) -> RoleChange:
    """Return the role in these options: the role that the broker begins with at its next start."""
    return RoleChange(options.role, options.broker_id)


def role_asked(options: BrokerOptions, wanted: Mapping[str, str], now: RoleChange) -> RoleChange | None:
    """Return the role that changed settings ask for; None if it is ``now``, the current one. Raises
    OptionError."""
    if not ROLE_KEYS & wanted.keys():
        return None
    if options.controlled:
        raise Refused(
            ResponseCode.SYSTEM_ERROR,
            "the role is not changed: a controller elects the leader (enableControllerMode). To elect "
            "another one: kerolox controller elect",
        )
    if options.ledger:
        raise Refused(
            ResponseCode.SYSTEM_ERROR,
            "the role is not changed: the members of the DLedger group elect the leader "
            "(enableDLegerCommitLog)",
        )
    known = {spec.key: spec for spec in specs(BrokerOptions)}
    role = known["brokerRole"].parse(wanted.get("brokerRole", now.role.value), "update")
    follower_id = known["brokerId"].parse(wanted.get("brokerId", str(now.follower_id)), "update")
    to = RoleChange(role, follower_id if role is BrokerRole.SLAVE else 0)
    if to.leads and "brokerId" in wanted and follower_id not in (0, now.follower_id):
        raise OptionError(
            "brokerId",
            follower_id,
            f"0 with brokerRole={role.value}: leaders have the id 0. Set brokerRole=SLAVE together with it "
            "to make this broker a follower with that id",
            "update",
        )
    if not to.leads and not to.follower_id:
        raise OptionError("brokerId", 0, "1 or more with brokerRole=SLAVE: set both at once", "update")
    return None if to == now else to


def check_role(options: BrokerOptions) -> None:
    """Raise OptionError for a follower with a leader's id, and for settings that do not go together with a
    controller or a DLedger group."""
    if options.ledger:
        _check_ledger(options)
        return
    if options.controlled:
        if options.acting:
            raise OptionError(
                "enableSlaveActingMaster", True, "false with enableControllerMode: the controller elects a "
                "leader, so no follower acts for one",
            )  # fmt: skip
        if not options.controllers:
            raise OptionError(
                "controllerAddr", "", "the addresses of the controllers, host:port, with enableControllerMode"
            )
        return
    if options.broker_id < 0:
        raise OptionError("brokerId", options.broker_id, "0 or more without enableControllerMode")
    if options.role is BrokerRole.SLAVE and not options.broker_id:
        raise OptionError("brokerId", 0, "1 or more with brokerRole=SLAVE: Slave's brokerId must be > 0")


def _check_ledger(options: BrokerOptions) -> None:
    for key, asked, why in (
        ("enableControllerMode", options.controlled, "only one of the two can elect the leader"),
        ("enableSlaveActingMaster", options.acting, "the group elects a leader"),
        ("enabledAppendPropCRC", options.record_crc, "records of DLedger logs have none"),
        (
            "enableMultiDispatch",
            options.multi_dispatch,
            "messages of DLedger logs are not dispatched to light queues",
        ),
    ):
        if asked:
            raise OptionError(key, True, f"false with enableDLegerCommitLog: {why}")
    options.ledger_settings  # noqa: B018 — raises what is wrong with it
    # Entries and records never lie in one directory.
    plain = options.commit_log_paths or os.path.join(options.store_path, "commitlog")
    both = _places(options.ledger_paths) & (_places(plain) | _places(options.read_only_paths))
    if both:
        raise OptionError(
            "storePathDLedgerCommitLog", options.ledger_paths,
            f"directories that storePathCommitLog does not use; both use {', '.join(sorted(both))}",
        )  # fmt: skip


def _places(text: str) -> set[str]:
    return {os.path.abspath(word.strip()) for word in text.split(",") if word.strip()}
