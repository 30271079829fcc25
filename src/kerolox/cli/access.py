"""``kerolox access``: users, policies, and explanations of access decisions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kerolox.access.key_file import FIRST_USER, INNER_USER
from kerolox.cli import access_explain, access_migrate, access_policies, access_users
from kerolox.cli.output import JsonFlag, command, output
from kerolox.errors import OptionError

SETTINGS_FILE = "access.conf"

app = typer.Typer(help="Manage users and access policies.", no_args_is_help=True)
app.add_typer(access_users.app, name="user")
app.add_typer(access_policies.app, name="policy")
app.command("explain", epilog=access_explain.EXAMPLE)(access_explain.explain)
app.command("migrate", epilog=access_migrate.EXAMPLE)(access_migrate.migrate)


@command(app, "init", "kerolox access init /etc/kerolox")
def init(
    folder: Annotated[Path, typer.Argument(help="Folder for the files.")] = Path("."),
    first: Annotated[str, typer.Option("--user", help="Name of the first user.")] = FIRST_USER,
    inner: Annotated[
        str, typer.Option(help="Name of the user for requests between servers.", metavar="NAME")
    ] = INNER_USER,
    show_secrets: Annotated[
        bool, typer.Option("--show-secrets", help="Print the generated passwords.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Create the files of a secured server.

    access.json contains an administrator and a user for requests between servers; tools.yml has the
    administrator's keys; access.conf has the lines for the servers' configuration files. Passwords are
    random. Existing files are never overwritten.
    """
    from kerolox.access.book import check_user_name
    from kerolox.access.folder import AccessFolder
    from kerolox.access.key_file import FileThere, write_private
    from kerolox.protocol.bodies.properties_text import write_properties

    check_user_name(first)
    check_user_name(inner)
    if first == inner:
        raise OptionError("--inner", inner, "a name different from the first user's")
    made_in = AccessFolder(folder)
    settings_file = made_in.path / SETTINGS_FILE
    for path in (made_in.access, made_in.keys, settings_file):
        if path.exists():
            raise FileThere(
                f"{path} exists and is not overwritten. List its users: kerolox access user list --file "
                f"{made_in.access}; or choose another folder"
            )
    made = made_in.make(first, inner)
    assert made.first is not None
    settings = made_in.settings(made.inner)
    write_private(settings_file, _HEAD + write_properties(settings))
    shown = settings if show_secrets else settings | {"innerClientAuthenticationCredentials": "********"}
    out = output(json)
    out.note(f"{made_in.access}: users {first} and {inner}, both with all rights")
    out.note(f"{made_in.keys}: the keys of {first}, for mqadmin and kerolox:")
    out.note(f"    export KEROLOX_KEYS_FILE={made_in.keys}")
    out.note(f"{settings_file}: lines for broker.conf, namesrv.conf and controller.conf of every server:")
    for key, value in shown.items():
        out.note(f"    {key}={value}")
    if show_secrets:
        out.note(f"the password of {first} is {made.first.secret_key}")
    out.note(
        "Only their owner can read these files. Servers on other machines need a copy of access.json at "
        "accessPath."
    )
    if json:
        document: dict[str, object] = {
            "accessFile": str(made_in.access),
            "keysFile": str(made_in.keys),
            "settingsFile": str(settings_file),
            "users": [first, inner],
            "settings": shown,
        }
        if show_secrets:
            document["keys"] = {"accessKey": first, "secretKey": made.first.secret_key}
        out.show(document)


_HEAD = """\
# Access control. Add these lines to broker.conf, namesrv.conf and controller.conf of every server.
# Configure every client to sign its requests first: see "Access control" in docs/OPERATIONS.md.
"""
