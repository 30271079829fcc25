"""Requests that create, update, delete, get and list users and policies (RocketMQ 5.3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kerolox.access.book import Book, check_user_name, user_body
from kerolox.access.book_file import BookFile
from kerolox.access.guard import Guard
from kerolox.access.needs.kinds import CHANGES_ACCESS, LOOKS
from kerolox.errors import InvalidRequest, KeroloxError, Refused
from kerolox.front.requests import Answer, Request
from kerolox.front.rows import serves
from kerolox.protocol.bodies import access as bodies
from kerolox.protocol.bodies.body import encode_list
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.headers import auth as headers


class UserRequests:
    """Requests about users and policies. The guard has already decided whether the caller may send them. This
    class decides what the caller may see and change of super users."""

    def __init__(self, file: BookFile, guard: Guard) -> None:
        self._file = file
        self._guard = guard

    # --- users ---------------------------------------------------------------------------------------

    @serves(RequestCode.AUTH_CREATE_USER, headers.UserRequest, CHANGES_ACCESS)
    async def create_user(self, request: Request[headers.UserRequest]) -> Answer:
        """Create a user."""
        body = _user_of(request)
        self._check_by_super(request)
        await self._change(
            request, lambda book: book.create_user(body), f"user {body.username!r} was created"
        )
        return Answer()

    @serves(RequestCode.AUTH_UPDATE_USER, headers.UserRequest, CHANGES_ACCESS)
    async def update_user(self, request: Request[headers.UserRequest]) -> Answer:
        """Change a user."""
        body = _user_of(request)
        self._check_by_super(request)

        def update(book: Book) -> None:
            book.update_user(body)
            self._check_super_left(book, body.username or "")

        parts = [
            name
            for name, value in (
                ("password", body.password), ("type", body.user_type), ("status", body.user_status)
            )
            if value is not None
        ]  # fmt: skip
        await self._change(request, update, f"{' and '.join(parts)} of user {body.username!r} changed")
        return Answer()

    @serves(RequestCode.AUTH_DELETE_USER, headers.UserRequest, CHANGES_ACCESS)
    async def delete_user(self, request: Request[headers.UserRequest]) -> Answer:
        """Delete a user and its policies."""
        name = _named(request.header.username)
        self._check_by_super(request)

        def delete(book: Book) -> None:
            book.delete_user(name)
            self._check_super_left(book, name)

        await self._change(request, delete, f"user {name!r} was deleted")
        return Answer()

    @serves(RequestCode.AUTH_GET_USER, headers.UserRequest, LOOKS)
    async def get_user(self, request: Request[headers.UserRequest]) -> Answer:
        """Return a user."""
        await self._file.refresh()
        user = self._book.users.get(_named(request.header.username))
        if user is None:
            return Answer()
        return Answer(body=user_body(user, with_password=self._is_super(request)).encode())

    @serves(RequestCode.AUTH_LIST_USER, headers.ListUsersRequest, LOOKS)
    async def list_users(self, request: Request[headers.ListUsersRequest]) -> Answer:
        """Return the users whose names contain a text."""
        await self._file.refresh()
        part = request.header.filter or ""
        shown = self._is_super(request)
        found = [
            user_body(user, with_password=shown) for user in self._book.users.values() if part in user.name
        ]
        return Answer(body=encode_list(found)) if found else Answer()

    # --- policies ------------------------------------------------------------------------------------

    @serves(RequestCode.AUTH_CREATE_ACL, headers.AclRequest, CHANGES_ACCESS)
    @serves(RequestCode.AUTH_UPDATE_ACL, headers.AclRequest, CHANGES_ACCESS)
    async def put_rules(self, request: Request[headers.AclRequest]) -> Answer:
        """Add or change policies of a user."""
        self._check_by_super(request)
        subject = request.header.subject or ""
        body = bodies.Acl.decode(_body(request))
        await self._change(
            request, lambda book: book.merge_rules(subject, body), f"rules of {subject} changed"
        )
        return Answer()

    @serves(RequestCode.AUTH_DELETE_ACL, headers.DeleteAclRequest, CHANGES_ACCESS)
    async def delete_rules(self, request: Request[headers.DeleteAclRequest]) -> Answer:
        """Delete policies of a user."""
        self._check_by_super(request)
        said = request.header
        subject = said.subject or ""
        await self._change(
            request,
            lambda book: book.delete_rules(subject, said.policy_type, said.resource),
            f"rules of {subject} for {said.resource or 'everything'} were deleted",
        )
        return Answer()

    @serves(RequestCode.AUTH_GET_ACL, headers.AclRequest, LOOKS)
    async def get_rules(self, request: Request[headers.AclRequest]) -> Answer:
        """Return the policies of a user."""
        await self._file.refresh()
        found = self._book.rules_body(request.header.subject or "")
        return Answer() if found is None else Answer(body=found.encode())

    @serves(RequestCode.AUTH_LIST_ACL, headers.ListAclsRequest, LOOKS)
    async def list_rules(self, request: Request[headers.ListAclsRequest]) -> Answer:
        """Return the policies that match a user and a resource."""
        await self._file.refresh()
        subject, resource = request.header.subject_filter or "", request.header.resource_filter or ""
        found = []
        for name in self._book.policies:
            acl = self._book.rules_body(self._book.users[name].subject)
            if acl is not None and subject in (acl.subject or ""):
                kept = _about(acl, resource)
                if kept.policies:
                    found.append(kept)
        return Answer(body=encode_list(found)) if found else Answer()

    # --- rights --------------------------------------------------------------------------------------

    @property
    def _book(self) -> Book:
        return self._file.book

    def _is_super(self, request: Request[Any]) -> bool:
        """True if the caller may see passwords. Without authentication no caller sees them."""
        user = self._book.users.get(request.identity or "")
        return user is not None and user.is_super

    def _check_by_super(self, request: Request[Any]) -> None:
        """Raise unless a super user asks. The guard has checked this already, unless a setting exempts the
        request code from its rules. Without authentication every caller may change users."""
        if self._guard.wants_signatures and not self._is_super(request):
            raise Refused(ResponseCode.NO_PERMISSION, "only a super user may change users and policies")

    def _check_super_left(self, book: Book, name: str) -> None:
        """Check a draft of the users after a change of this user; an error discards the draft."""
        had, has = (
            any(one.is_super and one.is_enabled for one in users.values())
            for users in (self._book.users, book.users)
        )
        if had and not has and self._guard.wants_signatures:
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"{name!r} is the last super user; without it this broker could not be administered. Create "
                "another super user first",
            )

    async def _change(self, request: Request[Any], change: Callable[[Book], object], what: str) -> None:
        try:
            await self._file.change(change)
        except InvalidRequest as error:
            raise Refused(ResponseCode.NO_PERMISSION, str(error)) from error
        self._guard.audit.changed(request, what)


def _user_of(request: Request[headers.UserRequest]) -> bodies.User:
    """Return the user in the body, under the name in the header."""
    name = _named(request.header.username)
    body = bodies.User.decode(_body(request))
    return bodies.User(
        password=body.password, user_status=body.user_status, user_type=body.user_type, username=name
    )


def _named(name: str | None) -> str:
    if not (name or "").strip():
        raise Refused(ResponseCode.INVALID_PARAMETER, "The username is blank")
    try:
        return check_user_name(name)
    except KeroloxError as error:
        raise Refused(ResponseCode.INVALID_PARAMETER, str(error)) from error


def _body(request: Request[Any]) -> bytes:
    if not request.body:
        raise Refused(ResponseCode.SYSTEM_ERROR, "the request has no body")
    return request.body


def _about(acl: bodies.Acl, resource: str) -> bodies.Acl:
    """Return the entries whose resource contains a text."""
    if not resource:
        return acl
    policies = []
    for policy in acl.policies or ():
        entries = tuple(entry for entry in policy.entries or () if resource in (entry.resource or ""))
        if entries:
            policies.append(bodies.AclPolicy(entries=entries, policy_type=policy.policy_type))
    return bodies.Acl(policies=tuple(policies), subject=acl.subject)
