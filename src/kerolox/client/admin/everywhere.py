"""Users and rules at several places: brokers, or the file of a server.

All places are read, so that differences show; a change is made at all of them, one after the other, and a
change that did not reach all of them says which it reached.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from kerolox.errors import KeroloxError, RequestFailed, nearest

if TYPE_CHECKING:
    from kerolox.protocol.bodies.access import Acl, User

T = TypeVar("T")


class Place(Protocol):
    """Users and rules of a broker (:class:`kerolox.client.admin.access.BrokerAccess`) or of a file."""

    name: str

    async def users(self, part: str = "") -> list[User]: ...
    async def user(self, name: str) -> User | None: ...
    async def create_user(self, user: User) -> None: ...
    async def update_user(self, user: User) -> None: ...
    async def delete_user(self, name: str) -> None: ...
    async def all_rules(self, user_part: str = "", resource_part: str = "") -> list[Acl]: ...
    async def rules(self, user: str) -> Acl | None: ...
    async def put_rules(self, user: str, rules: Acl) -> None: ...
    async def delete_rules(
        self, user: str, resource: str | None = None, policy_type: str | None = None
    ) -> None: ...


async def read_all(
    places: Sequence[Place],
    ask: Callable[[Place], Coroutine[Any, Any, T]],
    report: Callable[[str], object],
) -> dict[str, T]:
    """Return the answer of each place, by its name. A place that does not answer is reported; the first error
    is raised when none does."""
    found: dict[str, T] = {}
    errors: list[tuple[str, KeroloxError]] = []
    for place in places:
        try:
            found[place.name] = await ask(place)
        except KeroloxError as error:
            errors.append((place.name, error))
    if not found and errors:
        raise errors[0][1]
    for name, why in errors:
        report(f"{name} failed: {why}")
    return found


async def change_all(places: Sequence[Place], change: Callable[[Place], Coroutine[Any, Any, None]]) -> None:
    """Change each place. Raises NotEverywhere when some were changed before one failed."""
    from kerolox.client.errors import NotEverywhere

    done: list[str] = []
    for place in places:
        try:
            await change(place)
        except KeroloxError as error:
            if not done:
                raise
            left = [one.name for one in places if one.name not in done]
            raise NotEverywhere(
                f"changed at {', '.join(done)}, but not at {', '.join(left)}: {error} Repeat the command for "
                "these with -b"
            ) from error
        done.append(place.name)


async def create_user(places: Sequence[Place], user: User, report: Callable[[str], object]) -> None:
    """Create a user at all places. Raises AlreadyThere when one of them has it."""
    from kerolox.client.errors import AlreadyThere

    there = await read_all(places, lambda place: place.user(user.username or ""), report)
    known = sorted(at for at, one in there.items() if one is not None)
    if known:
        raise AlreadyThere(
            f"user {user.username!r} exists at {', '.join(known)}. Change it: kerolox access user update; or "
            "copy it to other places: kerolox access user copy"
        )
    await change_all(places, lambda place: _create(place, user, places[0]))


async def _create(place: Place, user: User, first: Place) -> None:
    """Create a user at one place. Brokers that share a file, or copy users from another, have it as soon as
    the first has it."""
    try:
        await place.create_user(user)
    except RequestFailed:
        if place is first or await place.user(user.username or "") is None:
            raise
        await place.update_user(user)


async def known_user(places: Sequence[Place], name: str, report: Callable[[str], object]) -> dict[str, User]:
    """Return the user as each place that knows it has it. Raises NotFound when none does."""
    from kerolox.client.errors import NotFound

    found = await read_all(places, lambda place: place.user(name), report)
    known = {at: user for at, user in found.items() if user is not None}
    if not known:
        others = await read_all(places, lambda place: place.users(), report)
        near = nearest(name, {one.username or "" for users in others.values() for one in users})
        raise NotFound(f"user {name!r} does not exist at {', '.join(found)}.{near}")
    return known


async def delete_rules(
    places: Sequence[Place],
    user: str,
    resources: Sequence[str],
    policy: str,
    report: Callable[[str], object],
) -> None:
    """Delete the rules of a user for these resources, or all without. Raises NotFound when a rule that is to
    be deleted is nowhere."""
    await _check_rules(places, user, resources, policy, report)

    async def change(place: Place) -> None:
        if await place.rules(user) is None:
            return  # brokers that share a file: the first has deleted them
        for resource in resources or (None,):
            await place.delete_rules(user, resource, policy if resource else None)

    await change_all(places, change)


async def _check_rules(
    places: Sequence[Place],
    user: str,
    resources: Sequence[str],
    policy: str,
    report: Callable[[str], object],
) -> None:
    from kerolox.client.errors import NotFound

    found = await read_all(places, lambda place: place.rules(user), report)
    known = {
        entry.resource or ""
        for acl in found.values()
        for one in (acl.policies if acl is not None else None) or ()
        if not resources or (one.policy_type or "Custom") == policy
        for entry in one.entries or ()
    }
    if not known and not resources:
        raise NotFound(f"{user} has no rules at {', '.join(found)}")
    for resource in resources:
        if resource not in known:
            near = nearest(resource, known)
            raise NotFound(
                f"{user} has no {policy} rule for {resource} at {', '.join(found)}. Existing rules: "
                f"{', '.join(sorted(known)) or 'none'}.{near}"
            )


def users_by_content(found: Mapping[str, Sequence[User]]) -> dict[tuple[str, str, str], list[str]]:
    """Return name, type and status of all users → the places that agree on them."""
    users: dict[tuple[str, str, str], list[str]] = {}
    for at, listed in found.items():
        for user in listed:
            content = (user.username or "", user.user_type or "", user.user_status or "")
            users.setdefault(content, []).append(at)
    return dict(sorted(users.items()))


RuleContent = tuple[str, str, str, tuple[str, ...], tuple[str, ...], str]


def rules_by_content(found: Mapping[str, Sequence[Acl]]) -> dict[RuleContent, list[str]]:
    """Return user, policy, resource, actions, sources and decision of all rules → their places."""
    from kerolox.client.admin.access import SUBJECT_PREFIX

    rules: dict[RuleContent, list[str]] = {}
    for at, acls in found.items():
        for acl in acls:
            for policy in acl.policies or ():
                for entry in policy.entries or ():
                    content = (
                        (acl.subject or "").removeprefix(SUBJECT_PREFIX),
                        policy.policy_type or "Custom",
                        entry.resource or "",
                        tuple(entry.actions or ()),
                        tuple(entry.source_ips or ()),
                        entry.decision or "",
                    )
                    rules.setdefault(content, []).append(at)
    return dict(sorted(rules.items()))
