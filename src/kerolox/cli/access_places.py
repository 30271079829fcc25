"""Places that store users and rules: brokers, or the access file of a server.

Commands read from all chosen places, so that differences are visible, and change all of them, one after the
other. If a change fails at some places, the error lists those that have it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from kerolox.cli.nameservers import run_admin
from kerolox.cli.output import say
from kerolox.client.admin import everywhere
from kerolox.client.admin.everywhere import Place, change_all
from kerolox.errors import KeroloxError, OptionError

if TYPE_CHECKING:
    from kerolox.access.book import Book
    from kerolox.client.admin.calls import AdminCalls
    from kerolox.protocol.bodies.access import Acl, User

__all__ = [
    "AddressOption",
    "ClusterOption",
    "FileAccess",
    "FileOption",
    "Place",
    "Where",
    "change_all",
    "known_user",
    "read_all",
    "run_between",
]

T = TypeVar("T")

AddressOption = Annotated[
    str | None, typer.Option("--address", "-b", help="Address of a single broker.", metavar="HOST:PORT")
]
ClusterOption = Annotated[
    str | None,
    typer.Option("--cluster", "-c", help="Name of the cluster. Default: all clusters.", metavar="NAME"),
]
FileOption = Annotated[
    Path | None,
    typer.Option(
        "--file",
        help="Path of an access.json, instead of brokers. Running servers reload a changed file.",
        metavar="FILE",
    ),
]


@dataclass(frozen=True)
class Where:
    """Options that choose the places."""

    nameserver: str
    address: str | None = None
    cluster: str | None = None
    file: Path | None = None

    def run(self, work: Callable[[list[Place]], Coroutine[Any, Any, T]]) -> T:
        """Run a command's work on the chosen places."""
        from kerolox.net.loop import run

        given = [one for one in (self.address, self.cluster, self.file) if one is not None]
        if len(given) > 1:
            raise OptionError("--file" if self.file else "--address", given[-1], "one place, not several")
        if self.file is not None:
            return run(work([FileAccess(self.file)]))

        async def at_brokers(admin: AdminCalls) -> T:
            from kerolox.client.admin.access import BrokerAccess, brokers

            addresses = [self.address] if self.address else await brokers(admin, self.cluster)
            return await work([BrokerAccess(admin, address) for address in addresses])

        return run_admin(self.nameserver, at_brokers)

    def change(self, user: str, change: Callable[[Place], Coroutine[Any, Any, None]]) -> list[str]:
        """Make a change at all places that have a user, and return their names."""

        async def work(places: list[Place]) -> list[str]:
            known = await known_user(places, user)
            await change_all([one for one in places if one.name in known], change)
            return list(known)

        return self.run(work)


# --- reading -------------------------------------------------------------------------------------------


async def read_all(places: Sequence[Place], ask: Callable[[Place], Coroutine[Any, Any, T]]) -> dict[str, T]:
    """Return the answer of each place, by its name. A place that does not answer is reported on stderr."""
    return await everywhere.read_all(places, ask, say)


async def known_user(places: Sequence[Place], name: str) -> dict[str, User]:
    """Return the user as each place that knows it has it. Raises NotFound when none does."""
    return await everywhere.known_user(places, name, say)


# --- files -----------------------------------------------------------------------------------------------


class FileAccess:
    """Access file of a server. A running server reloads the file after a change."""

    def __init__(self, path: Path, *, new: bool = False) -> None:
        self.name = str(path)
        self._path = path
        self._new = new

    def read(self) -> Book:
        from kerolox.access.book import Book
        from kerolox.access.book_file import BookBroken, decode_book

        try:
            return decode_book(self._path.read_bytes())
        except FileNotFoundError:
            if self._new:
                return Book()
            raise OptionError(
                "--file", self.name, "an existing access.json. Create one: kerolox access init"
            ) from None
        except KeroloxError as error:
            raise BookBroken(self.name, error) from error

    def change(self, change: Callable[[Book], object]) -> None:
        """Apply a change to the book under the file's lock, and save it."""
        import os

        from kerolox.access.book_file import lock_book, save_book

        alone = lock_book(self.name)
        try:
            book = self.read()
            change(book)
            save_book(self.name, book)
        finally:
            os.close(alone)

    async def users(self, part: str = "") -> list[User]:
        from kerolox.access.book import user_body

        found = self.read().users.values()
        return [user_body(user, with_password=True) for user in found if part in user.name]

    async def user(self, name: str) -> User | None:
        from kerolox.access.book import user_body

        found = self.read().users.get(name)
        return None if found is None else user_body(found, with_password=True)

    async def create_user(self, user: User) -> None:
        self.change(lambda book: book.create_user(user))

    async def update_user(self, user: User) -> None:
        self.change(lambda book: book.update_user(user))

    async def delete_user(self, name: str) -> None:
        self.change(lambda book: book.delete_user(name))

    async def all_rules(self, user_part: str = "", resource_part: str = "") -> list[Acl]:
        from kerolox.client.admin.access import subject_of

        book = self.read()
        found = [
            _about(book.rules_body(subject_of(name)), resource_part)
            for name in book.policies
            if user_part in subject_of(name)
        ]
        return [acl for acl in found if acl is not None]

    async def rules(self, user: str) -> Acl | None:
        from kerolox.client.admin.access import subject_of

        return self.read().rules_body(subject_of(user))

    async def put_rules(self, user: str, rules: Acl) -> None:
        from kerolox.client.admin.access import subject_of

        self.change(lambda book: book.merge_rules(subject_of(user), rules))

    async def delete_rules(
        self, user: str, resource: str | None = None, policy_type: str | None = None
    ) -> None:
        from kerolox.client.admin.access import subject_of

        self.change(lambda book: book.delete_rules(subject_of(user), policy_type, resource))


def _about(acl: Acl | None, resource: str) -> Acl | None:
    """Return the entries whose resource contains the text; None if no entry does."""
    import msgspec

    if acl is None:
        return None
    policies = tuple(
        msgspec.structs.replace(policy, entries=entries)
        for policy in acl.policies or ()
        if (entries := tuple(one for one in policy.entries or () if resource in (one.resource or "")))
    )
    return msgspec.structs.replace(acl, policies=policies) if policies else None


# --- one place or another --------------------------------------------------------------------------------


def run_between(
    source: str, target: str, work: Callable[[Place, Place], Coroutine[Any, Any, T]], nameserver: str
) -> T:
    """Run work on two places, each the address of a broker or a file."""
    from kerolox.client.admin.access import BrokerAccess

    if source == target:
        raise OptionError("--to", target, f"a place different from --from {source}")

    def place(admin: AdminCalls, text: str, new: bool) -> Place:
        host, separator, port = text.rpartition(":")
        if separator and host and port.isdigit() and "/" not in text:
            return BrokerAccess(admin, text)
        return FileAccess(Path(text), new=new)

    async def both(admin: AdminCalls) -> T:
        return await work(place(admin, source, False), place(admin, target, True))

    return run_admin(nameserver, both)
