"""``kerolox access user``"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kerolox.access.key_file import ClientFile
from kerolox.cli.access_places import (
    AddressOption,
    ClusterOption,
    FileOption,
    Place,
    Where,
    known_user,
    read_all,
    run_between,
)
from kerolox.cli.access_secrets import (
    ClientFileOption,
    GenerateOption,
    ShowSecretOption,
    StdinOption,
    ask_password,
)
from kerolox.cli.nameservers import DEFAULT_ADDRESS, NameServerOption
from kerolox.cli.output import JsonFlag, column, command, output, row, say, table
from kerolox.client.admin import everywhere
from kerolox.errors import KeroloxError, OptionError

if TYPE_CHECKING:
    from kerolox.protocol.bodies.access import User

app = typer.Typer(help="Manage users.", no_args_is_help=True)

NameArgument = Annotated[str, typer.Argument(help="Name of the user, which is its access key.")]


class UserType(Enum):
    SUPER = "Super"
    NORMAL = "Normal"


TypeOption = Annotated[
    UserType | None,
    typer.Option(
        "--type", help="Super: all rights. Normal: the rights its rules allow.", case_sensitive=False
    ),
]


@row
class UserRow:
    """User, and the places that have it."""

    username: str = column("user")
    user_type: str = column("type")
    user_status: str = column("status")
    at: list[str] = column("at", ", ".join)


@command(app, "list", "kerolox access user list -b 127.0.0.1:10911")
def list_users(
    part: Annotated[str, typer.Argument(help="Only users whose name contains this text.")] = "",
    address: AddressOption = None,
    cluster: ClusterOption = None,
    file: FileOption = None,
    nameserver: NameServerOption = DEFAULT_ADDRESS,
    json: JsonFlag = False,
) -> None:
    """List users, with the places that have each. Passwords are never shown."""
    from kerolox.client.errors import NotFound

    async def work(places: list[Place]) -> dict[str, list[User]]:
        return await read_all(places, lambda place: place.users(part))

    found = Where(nameserver, address, cluster, file).run(work)
    rows = [UserRow(*user, at) for user, at in everywhere.users_by_content(found).items()]
    if part and not rows:
        raise NotFound(f"no user name contains {part!r} at {', '.join(found)}")
    empty = f"no users at {', '.join(found)}. Create one: kerolox access user create NAME --generate"
    output(json).show(rows, table(UserRow, rows, empty=empty))


@command(app, "create", "kerolox access user create alice --generate --client-file alice.yml")
def create(
    name: NameArgument,
    type: TypeOption = UserType.NORMAL,
    password_stdin: StdinOption = False,
    generate: GenerateOption = False,
    client_file: ClientFileOption = None,
    show_secret: ShowSecretOption = False,
    address: AddressOption = None,
    cluster: ClusterOption = None,
    file: FileOption = None,
    nameserver: NameServerOption = DEFAULT_ADDRESS,
    json: JsonFlag = False,
) -> None:
    """Create a user. Prompts for the password unless it is generated or read from stdin."""
    from kerolox.protocol.bodies.access import User

    password = ask_password(name, from_stdin=password_stdin, generate=generate)
    kind = type or UserType.NORMAL
    user = User(username=name, password=password, user_type=kind.value, user_status="enable")

    async def work(places: list[Place]) -> list[str]:
        await everywhere.create_user(places, user, say)
        return [place.name for place in places]

    keys = _keys_kept(name, password, generate, client_file, show_secret)
    places = _with_keys(keys, lambda: Where(nameserver, address, cluster, file).run(work))
    _say_done(f"user {name} was created", user, places, keys, show_secret, json)


@command(app, "update", "kerolox access user update alice --generate --client-file alice.yml")
def update(
    name: NameArgument,
    password: Annotated[bool, typer.Option("--password", help="Prompt for a new password.")] = False,
    password_stdin: StdinOption = False,
    generate: GenerateOption = False,
    client_file: ClientFileOption = None,
    show_secret: ShowSecretOption = False,
    type: TypeOption = None,
    enabled: Annotated[
        bool | None, typer.Option("--enable/--disable", help="Accept or reject the user's requests.")
    ] = None,
    address: AddressOption = None,
    cluster: ClusterOption = None,
    file: FileOption = None,
    nameserver: NameServerOption = DEFAULT_ADDRESS,
    json: JsonFlag = False,
) -> None:
    """Change the password, type or status of a user, at every place that has it.

    Settings without an option are not changed.
    """
    from kerolox.protocol.bodies.access import User

    changes_password = password or password_stdin or generate
    if not changes_password and type is None and enabled is None:
        raise OptionError(
            "--password", False, "something to change: --password, --generate, --type, --enable or --disable"
        )
    secret = ask_password(name, from_stdin=password_stdin, generate=generate) if changes_password else None
    user = User(
        username=name,
        password=secret,
        user_type=None if type is None else type.value,
        user_status=None if enabled is None else ("enable" if enabled else "disable"),
    )

    where = Where(nameserver, address, cluster, file)
    keys = _keys_kept(name, secret or "", generate, client_file, show_secret)
    places = _with_keys(keys, lambda: where.change(name, lambda place: place.update_user(user)))
    _say_done(f"user {name} was changed", user, places, keys, show_secret, json)


@command(app, "delete", "kerolox access user delete alice --yes")
def delete(
    name: NameArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation prompt.")] = False,
    address: AddressOption = None,
    cluster: ClusterOption = None,
    file: FileOption = None,
    nameserver: NameServerOption = DEFAULT_ADDRESS,
    json: JsonFlag = False,
) -> None:
    """Delete a user and its rules. Its requests are rejected from then on."""
    if not yes:
        typer.confirm(f"Delete user {name} and its rules?", abort=True, err=True)
    where = Where(nameserver, address, cluster, file)
    places = where.change(name, lambda place: place.delete_user(name))
    sentence = f"user {name} was deleted at {', '.join(places)}"
    output(json).report(sentence, {"username": name, "at": places})


@command(app, "copy", "kerolox access user copy --from 10.0.0.1:10911 --to access.json")
def copy(
    source: Annotated[
        str, typer.Option("--from", help="Source: a broker's address or a file.", metavar="PLACE")
    ],
    target: Annotated[
        str,
        typer.Option(
            "--to", help="Target: a broker's address, or a file, created if missing.", metavar="PLACE"
        ),
    ],
    names: Annotated[list[str] | None, typer.Argument(help="Names of users. Default: all.")] = None,
    policies: Annotated[
        bool, typer.Option("--policies", help="Copy their rules, too, replacing those at the target.")
    ] = False,
    nameserver: NameServerOption = DEFAULT_ADDRESS,
    json: JsonFlag = False,
) -> None:
    """Copy users with their passwords from one place to another. Existing users are overwritten.

    Brokers send passwords only to Super users.
    """

    async def work(origin: Place, place: Place) -> list[str]:
        users = [
            user
            for user in await origin.users()
            if user.username and user.username in (names or [user.username])
        ]
        for name in names or ():
            if name not in {user.username for user in users}:
                await known_user([origin], name)  # raises with a suggestion
        await _check_passwords(origin, users)
        for user in users:
            known = await place.user(user.username or "")
            await (place.create_user if known is None else place.update_user)(user)
            if policies:
                await replace_rules(origin, place, user.username or "")
        return [user.username or "" for user in users]

    copied = run_between(source, target, work, nameserver)
    sentence = f"{len(copied)} users copied from {source} to {target}: {', '.join(copied) or 'none'}"
    output(json).report(sentence, {"users": copied, "from": source, "to": target})


async def replace_rules(origin: Place, place: Place, name: str) -> None:
    """Replace the user's rules at a place with those at the origin."""
    rules = await origin.rules(name)
    if await place.rules(name) is not None:
        await place.delete_rules(name)
    if rules is not None and rules.policies:
        await place.put_rules(name, rules)


async def _check_passwords(origin: Place, users: Sequence[User]) -> None:
    hidden = [user.username or "" for user in users if not user.password]
    if hidden:
        raise KeroloxError(
            f"{origin.name} did not send the password of {', '.join(hidden)}: only Super users receive "
            "passwords. Set KEROLOX_ACCESS_KEY and KEROLOX_SECRET_KEY to the keys of a Super user"
        )


# --- keys ------------------------------------------------------------------------------------------------


def _keys_kept(name: str, password: str, generated: bool, path: Path | None, show: bool) -> ClientFile | None:
    """Return the key file to write; None if no file is wanted.

    A generated password is always written to a file or shown.
    """
    if path is None and generated and not show:
        path = Path(f"{name}.yml")
        if path.name != str(path) or name in (".", ".."):
            raise OptionError("--client-file", None, f"a file; {name!r} cannot be used as its name")
    if path is None:
        return None
    if not password:
        raise OptionError(
            "--client-file", str(path), "a new password: --generate, --password or --password-stdin"
        )
    return ClientFile(path, name, password)


def _with_keys(keys: ClientFile | None, work: Any) -> list[str]:
    """Do the work, and keep the key file if the work succeeded at one place at least."""
    from kerolox.client.errors import NotEverywhere

    try:
        done: list[str] = work()
    except NotEverywhere:
        if keys is not None:
            keys.keep()
        raise
    except BaseException:
        if keys is not None:
            keys.drop()
        raise
    if keys is not None:
        keys.keep()
    return done


def _say_done(
    what: str, user: User, places: list[str], keys: ClientFile | None, show: bool, json: bool
) -> None:
    out = output(json)
    out.note(f"{what} at {', '.join(places)}")
    if keys is not None:
        out.note(f"its keys are in {keys.path}: export KEROLOX_KEYS_FILE={keys.path}")
    if show and user.password:
        out.note(f"its password is {user.password}")
    if user.user_type == "Normal":
        out.note(f"it has only the rights of its rules: kerolox access policy set {user.username} --help")
    if json:
        document: dict[str, Any] = {
            "username": user.username,
            "userType": user.user_type,
            "userStatus": user.user_status,
            "at": places,
            "clientFile": None if keys is None else str(keys.path),
        }
        if show and user.password:
            document["password"] = user.password
        out.show(document)
