"""Options of RocketMQ 4's accounts. Only brokers have them."""

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
        False, "Require that every request is signed by an account of plain_acl.yml, as in RocketMQ 4, or "
        "comes from a white address in it.",
        key="aclEnable",
    )  # fmt: skip
    acl_path: str | None = option(
        None, "File of accounts. Default: plain_acl.yml in rocketmqHome/conf, or else beside the "
        "configuration file. It is read again when it changes.",
    )  # fmt: skip
    acl_folder: str | None = option(
        None, "Folder of more account files, *.yml and *.yaml. Default: acl beside plain_acl.yml."
    )
    rocketmq_home: str | None = option(
        None, "Installation folder of the RocketMQ that this broker replaces.",
        key="rocketmqHome", environment="ROCKETMQ_HOME",
    )  # fmt: skip
    migrate_acl: bool = option(
        False, "At the start, convert accounts of plain_acl.yml to users with rules; existing users stay "
        "unchanged.",
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
                "either the accounts of RocketMQ 4 or the users of 5.3. To convert accounts to users: "
                "aclEnable=false, authenticationEnabled=true, authorizationEnabled=true, "
                "migrateAuthFromV1Enabled=true",
            )  # fmt: skip

    def acl_places(self, config_path: str) -> tuple[str, str]:
        """Return the account file and the folder of more. ``config_path`` is the configuration file."""
        path = self.acl_path
        if path is None:
            if self.rocketmq_home is not None:
                path = os.path.join(self.rocketmq_home, "conf", FILE)
            elif config_path:
                path = os.path.join(os.path.dirname(config_path), FILE)
            else:
                raise OptionError("aclPath", "", f"the path of {FILE}: no configuration file is used")
        return path, self.acl_folder or os.path.join(os.path.dirname(path), FOLDER)
