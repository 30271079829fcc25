"""``kerolox access migrate``"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kerolox.cli.access_places import FileAccess
from kerolox.cli.output import JsonFlag, column, one_line_errors, output, row, say, table
from kerolox.errors import OptionError

if TYPE_CHECKING:
    from kerolox.access.book import Book
    from kerolox.access.plain.accounts import Account

EXAMPLE = "Example: kerolox access migrate /opt/rocketmq/conf/plain_acl.yml --file /etc/kerolox/access.json"
ENDINGS = (".yml", ".yaml")


@row
class MigratedRow:
    """User made of an account."""

    username: str = column("user")
    user_type: str = column("type")
    rules: int
    made: bool = column("now", lambda made: "created" if made else "existed")


@one_line_errors
def migrate(
    sources: Annotated[
        list[Path], typer.Argument(help="plain_acl.yml, further such files, or folders of them.")
    ],
    file: Annotated[
        Path,
        typer.Option("--file", help="access.json to add to. Created if missing.", metavar="FILE"),
    ] = Path("access.json"),
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the users to create, without changes.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Convert accounts of RocketMQ 4 into users and rules, as RocketMQ 5.3 does.

    Existing users are not changed. Settings without a counterpart, such as white lists, are reported.
    """
    from kerolox.access.plain.migration import migrate_into

    accounts, left_over = _read(sources)
    place = FileAccess(file, new=True)
    made: list[str] = []
    found: list[Book] = []

    def change(book: Book) -> None:
        names, lines = migrate_into(book, accounts.values())
        made.extend(names)
        left_over.extend(lines)
        found.append(book)

    if dry_run:
        change(place.read())
    else:
        place.change(change)
    (book,) = found
    rows = [
        MigratedRow(
            name,
            "Super" if book.users[name].is_super else "Normal",
            sum(map(len, (book.rules_of(name).custom, book.rules_of(name).default))),
            name in made,
        )
        for name in accounts
        if name in book.users
    ]
    out = output(json)
    out.show({"users": rows, "leftOver": left_over, "file": str(file)}, table(MigratedRow, rows))
    if not json:
        for line in left_over:
            say(f"not converted: {line}")
    out.note("nothing was written: --dry-run" if dry_run else f"{len(made)} users created in {file}")


def _read(sources: list[Path]) -> tuple[dict[str, Account], list[str]]:
    """Return all accounts, the first definition of each, and reports about the rest and about white lists."""
    from kerolox.access.plain.migration import left_over_white
    from kerolox.access.plain.yaml_file import parse

    paths = [path for source in sources for path in _files(source)]
    accounts: dict[str, Account] = {}
    left_over: list[str] = []
    for path in paths:
        read = parse(path.read_bytes(), str(path))
        for name, account in read.accounts.items():
            if name in accounts:
                left_over.append(f"{name}: defined again in {path}; the earlier definition is used")
            accounts.setdefault(name, account)
        left_over += left_over_white(read.white)
    if not accounts:
        raise OptionError("sources", ", ".join(map(str, sources)), "files with accounts; these have none")
    return accounts, left_over


def _files(source: Path) -> list[Path]:
    if not source.is_dir():
        return [source]
    return sorted(path for path in source.rglob("*") if path.suffix in ENDINGS and path.is_file())
