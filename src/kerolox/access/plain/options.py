"""The options of RocketMQ 4's accounts. Brokers alone have them."""

from __future__ import annotations

import os
from dataclasses import dataclass

from kerolox.access.options import AccessOptions
from kerolox.errors import OptionError
from kerolox.options import option

FILE = "plain_acl.yml"
FOLDER = "acl"


@dataclass
class PlainAclOptions(AccessOptions):
    acl: bool = option(
        False, "Every request must be signed by an account of plain_acl.yml, as with RocketMQ 4, or come "
        "from an address that is listed there.",
        key="aclEnable",
    )  # fmt: skip
    acl_path: str | None = option(
        None, "The file of accounts; plain_acl.yml in rocketmqHome/conf, or else beside the file of options, "
        "if unset. It is read again when it changes.",
    )  # fmt: skip
    acl_folder: str | None = option(
        None, "A folder of more files of accounts, *.yml and *.yaml; acl beside plain_acl.yml if unset."
    )
    rocketmq_home: str | None = option(
        None, "Where a RocketMQ that this broker takes the place of is installed.",
        key="rocketmqHome", environment="ROCKETMQ_HOME",
    )  # fmt: skip
    migrate_acl: bool = option(
        False, "At the start, accounts of plain_acl.yml become users with rules, unless there are users of "
        "their names.",
        key="migrateAuthFromV1Enabled",
    )  # fmt: skip

    @property
    def asks_who(self) -> bool:
        return self.authentication or self.acl

    def check_access(self) -> None:
        super().check_access()
        if self.acl and (self.authentication or self.migrate_acl):
            raise OptionError(
                "aclEnable", True,
                "either the accounts of RocketMQ 4 or the users of 5.3. To make users of the accounts: "
                "aclEnable=false, authenticationEnabled=true, authorizationEnabled=true, "
                "migrateAuthFromV1Enabled=true",
            )  # fmt: skip

    def acl_places(self, config_path: str) -> tuple[str, str]:
        """The file of accounts and the folder of more. ``config_path`` is the file of options."""
        path = self.acl_path
        if path is None:
            if self.rocketmq_home is not None:
                path = os.path.join(self.rocketmq_home, "conf", FILE)
            elif config_path:
                path = os.path.join(os.path.dirname(config_path), FILE)
            else:
                raise OptionError("aclPath", "", f"the path of {FILE}: no file of options says where it is")
        return path, self.acl_folder or os.path.join(os.path.dirname(path), FOLDER)
