"""Administration of users and access policies, at brokers with access control."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from kerolox.client.admin import everywhere
from kerolox.client.admin.access import BrokerAccess, brokers, subject_of
from kerolox.client.admin.part import AdminPart
from kerolox.client.admin.results import Rule, User
from kerolox.errors import OptionError
from kerolox.protocol.bodies import access as bodies

log = logging.getLogger(__name__)

SUPER, NORMAL = "Super", "Normal"
ALLOW, DENY = "Allow", "Deny"
CUSTOM = "Custom"


class AccessAdmin(AdminPart):
    """Creates, changes, deletes and lists users and their rules, at all brokers."""

    async def list_users(self, part: str = "") -> list[User]:
        """Return the users whose name contains ``part``. Passwords are never returned."""
        found = await everywhere.read_all(await self._places(), lambda place: place.users(part), _report)
        return [
            User(name=name, super_user=kind == SUPER, enabled=status == "enable", brokers=tuple(at))
            for (name, kind, status), at in everywhere.users_by_content(found).items()
        ]

    async def create_user(self, name: str, password: str, *, super_user: bool = False) -> None:
        """Create a user: its name is the access key, its password the secret key. Super users may do
        everything, others what their rules allow. Raises AlreadyThere."""
        if not name or not password:
            raise OptionError("password" if name else "name", "", "a text that is not empty")
        kind = SUPER if super_user else NORMAL
        user = bodies.User(username=name, password=password, user_type=kind, user_status="enable")
        await everywhere.create_user(await self._places(), user, _report)

    async def update_user(
        self,
        name: str,
        *,
        password: str | None = None,
        super_user: bool | None = None,
        enabled: bool | None = None,
    ) -> None:
        """Change a user where it exists. None leaves a setting as it is. Requests of a user that is not
        enabled are rejected."""
        user = bodies.User(
            username=name,
            password=password,
            user_type=None if super_user is None else SUPER if super_user else NORMAL,
            user_status=None if enabled is None else "enable" if enabled else "disable",
        )
        await everywhere.change_all(await self._places_of(name), lambda place: place.update_user(user))

    async def delete_user(self, name: str) -> None:
        """Delete a user and its rules. Raises NotFound."""
        await everywhere.change_all(await self._places_of(name), lambda place: place.delete_user(name))

    async def list_rules(self, user: str | None = None) -> list[Rule]:
        """Return the rules of a user, or of all."""
        places = await self._places()
        if user is not None:
            await everywhere.known_user(places, user, _report)
        found = await everywhere.read_all(places, lambda place: place.all_rules(user or ""), _report)
        return [
            Rule(
                user=name,
                resource=resource,
                actions=actions,
                allow=decision == ALLOW,
                sources=sources,
                policy=policy,
                brokers=tuple(at),
            )
            for content, at in everywhere.rules_by_content(found).items()
            for name, policy, resource, actions, sources, decision in [content]
            if user is None or name == user  # the names of others may contain this one
        ]

    async def set_rule(
        self,
        user: str,
        resource: str,
        actions: Sequence[str],
        *,
        allow: bool = True,
        sources: Sequence[str] = (),
        policy: str = CUSTOM,
    ) -> None:
        """Allow or forbid a user actions on a resource. Replaces the user's rule for the same resource.

        ``resource``: ``Topic:``, ``Group:`` or ``Cluster:`` with a name, a ``prefix*`` or ``*``. ``actions``:
        of Pub, Sub, Create, Update, Delete, Get, List and All. ``sources``: addresses and networks.
        """
        for name, texts in (("actions", actions), ("sources", sources)):
            if isinstance(texts, str):
                raise OptionError(name, texts, f"a list of texts: [{texts!r}]")
        entry = bodies.AclEntry(
            actions=tuple(actions),
            decision=ALLOW if allow else DENY,
            resource=resource,
            source_ips=tuple(sources) or None,
        )
        rules = bodies.Acl(
            policies=(bodies.AclPolicy(entries=(entry,), policy_type=policy),), subject=subject_of(user)
        )
        await everywhere.change_all(await self._places_of(user), lambda place: place.put_rules(user, rules))

    async def delete_rule(self, user: str, resource: str | None = None, *, policy: str = CUSTOM) -> None:
        """Delete the rule of a user for a resource, or all its rules without one. Raises NotFound."""
        wanted = [] if resource is None else [resource]
        await everywhere.delete_rules(await self._places_of(user), user, wanted, policy, _report)

    async def _places(self) -> list[everywhere.Place]:
        return [BrokerAccess(self._calls, address) for address in await brokers(self._calls)]

    async def _places_of(self, user: str) -> list[everywhere.Place]:
        """Return the brokers that know a user. Raises NotFound when none does."""
        places = await self._places()
        known = await everywhere.known_user(places, user, _report)
        return [place for place in places if place.name in known]


def _report(text: str) -> None:
    log.warning("broker_not_read reason=%r next='the result is that of the other brokers'", text)
