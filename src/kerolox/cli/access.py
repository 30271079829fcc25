"""``kerolox access``: users, their rules, and what would be decided."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kerolox.cli import access_explain, access_migrate, access_policies, access_users
from kerolox.cli.access_folder import FIRST_USER, INNER_USER
from kerolox.cli.output import JsonFlag, one_line_errors, output
from kerolox.errors import OptionError

SETTINGS_FILE = "access.conf"

app = typer.Typer(help="Who may do what: users and rules.", no_args_is_help=True)
app.add_typer(access_users.app, name="user")
app.add_typer(access_policies.app, name="policy")
app.command("explain", epilog=access_explain.EXAMPLE)(access_explain.explain)
app.command("migrate", epilog=access_migrate.EXAMPLE)(access_migrate.migrate)


@app.command("init", epilog="Example: kerolox access init /etc/kerolox")
@one_line_errors
def init(
    folder: Annotated[Path, typer.Argument(help="Where to put the files.")] = Path("."),
    first: Annotated[str, typer.Option("--user", help="Name of the first user.")] = FIRST_USER,
    inner: Annotated[
        str, typer.Option(help="Name under which servers ask each other.", metavar="NAME")
    ] = INNER_USER,
    show_secrets: Annotated[
        bool, typer.Option("--show-secrets", help="Show the passwords that were made.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Make what a secured server needs: access.json with a first user that may do everything and one for the
    servers themselves, tools.yml with the first user's keys, and access.conf with the lines for the servers'
    files. Passwords are random. Nothing is overwritten."""
    from kerolox.access.book import check_user_name
    from kerolox.cli.access_folder import AccessFolder
    from kerolox.cli.access_secrets import FileThere, write_private
    from kerolox.protocol.bodies.properties_text import write_properties

    check_user_name(first)
    check_user_name(inner)
    if first == inner:
        raise OptionError("--inner", inner, "another name than that of the first user")
    made_in = AccessFolder(folder)
    settings_file = made_in.path / SETTINGS_FILE
    for path in (made_in.access, made_in.keys, settings_file):
        if path.exists():
            raise FileThere(
                f"{path} is there already, and is not overwritten. Look at its users: kerolox access user "
                f"list --file {made_in.access}; or name another folder"
            )
    made = made_in.make(first, inner)
    assert made.first is not None
    settings = made_in.settings(made.inner)
    write_private(settings_file, _HEAD + write_properties(settings))
    shown = settings if show_secrets else settings | {"innerClientAuthenticationCredentials": "********"}
    out = output(json)
    out.note(f"{made_in.access}: users {first} and {inner}, who may do everything")
    out.note(f"{made_in.keys}: the keys of {first}, for mqadmin and for our commands:")
    out.note(f"    export KEROLOX_KEYS_FILE={made_in.keys}")
    out.note(f"{settings_file}: lines for broker.conf, namesrv.conf and controller.conf of every server:")
    for key, value in shown.items():
        out.note(f"    {key}={value}")
    if show_secrets:
        out.note(f"the password of {first} is {made.first.secret_key}")
    out.note(
        "Only you can read these files. Servers on other machines need a copy of access.json at accessPath."
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
# Access control. These lines belong into broker.conf, namesrv.conf and controller.conf of every server.
# Before they do, let every client sign its requests: see "Access control" in docs/OPERATIONS.md.
"""
