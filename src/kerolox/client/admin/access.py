"""Administration of users and rules at one broker (RocketMQ 5.3). Works with Apache's brokers, too."""

from __future__ import annotations

from kerolox.client.admin.calls import AdminCalls
from kerolox.protocol.bodies.access import Acl, User
from kerolox.protocol.bodies.body import decode_list
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.headers import auth as headers

SUBJECT_PREFIX = "User:"


def subject_of(user: str) -> str:
    return SUBJECT_PREFIX + user


async def brokers(admin: AdminCalls, cluster: str | None = None) -> list[str]:
    """Return the addresses of the brokers of a cluster, or of all, masters first. Followers are included, as
    by mqadmin: those of Apache do not copy users."""
    masters = await admin.masters(cluster=cluster)  # raises NotFound when there is no such cluster
    info = await admin.cluster_info()
    followers = {
        address
        for name in masters
        for address in info.broker_addr_table[name].broker_addrs.values()
        if address not in masters.values()
    }
    return [*masters.values(), *sorted(followers)]


class BrokerAccess:
    """Users and rules of one broker. The broker returns passwords only to Super users."""

    def __init__(self, admin: AdminCalls, address: str) -> None:
        self._admin = admin
        self.name = address

    # --- users ---------------------------------------------------------------------------------------

    async def users(self, part: str = "") -> list[User]:
        """Return the users whose name contains ``part``."""
        asked = headers.ListUsersRequest(filter=part or None)
        answer = await self._admin.ask(self.name, RequestCode.AUTH_LIST_USER, asked)
        return decode_list(answer.body, User) if answer.body else []

    async def user(self, name: str) -> User | None:
        asked = headers.UserRequest(username=name)
        answer = await self._admin.ask(self.name, RequestCode.AUTH_GET_USER, asked)
        return User.decode(answer.body) if answer.body else None

    async def create_user(self, user: User) -> None:
        await self._put_user(RequestCode.AUTH_CREATE_USER, user)

    async def update_user(self, user: User) -> None:
        """Update a user. Fields that are None are not changed."""
        await self._put_user(RequestCode.AUTH_UPDATE_USER, user)

    async def _put_user(self, code: int, user: User) -> None:
        asked = headers.UserRequest(username=user.username)
        await self._admin.ask(self.name, code, asked, user.encode())

    async def delete_user(self, name: str) -> None:
        """Delete a user and its rules."""
        asked = headers.UserRequest(username=name)
        await self._admin.ask(self.name, RequestCode.AUTH_DELETE_USER, asked)

    # --- rules ---------------------------------------------------------------------------------------

    async def all_rules(self, user_part: str = "", resource_part: str = "") -> list[Acl]:
        """Return rules, filtered by a part of the user's name and a part of the resource."""
        asked = headers.ListAclsRequest(
            subject_filter=user_part or None, resource_filter=resource_part or None
        )
        answer = await self._admin.ask(self.name, RequestCode.AUTH_LIST_ACL, asked)
        return decode_list(answer.body, Acl) if answer.body else []

    async def rules(self, user: str) -> Acl | None:
        asked = headers.AclRequest(subject=subject_of(user))
        answer = await self._admin.ask(self.name, RequestCode.AUTH_GET_ACL, asked)
        return Acl.decode(answer.body) if answer.body else None

    async def put_rules(self, user: str, rules: Acl) -> None:
        """Add rules to a user. An entry replaces the existing one for the same resource."""
        asked = headers.AclRequest(subject=subject_of(user))
        await self._admin.ask(self.name, RequestCode.AUTH_UPDATE_ACL, asked, rules.encode())

    async def delete_rules(
        self, user: str, resource: str | None = None, policy_type: str | None = None
    ) -> None:
        """Delete the rule for a resource, or all rules of the user without ``resource``."""
        asked = headers.DeleteAclRequest(subject=subject_of(user), policy_type=policy_type, resource=resource)
        await self._admin.ask(self.name, RequestCode.AUTH_DELETE_ACL, asked)
