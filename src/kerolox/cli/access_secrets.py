"""Secrets: where commands get them from, and where they put them. Never on a command line, where everybody on
the machine can read them, and on a terminal only when asked."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from kerolox.errors import KeroloxError, OptionError

SECRET_BYTES = 24  # of randomness; 32 letters
LINE_MAX = 4096

StdinOption = Annotated[
    bool, typer.Option("--password-stdin", help="Read the password from the first line of stdin.")
]
GenerateOption = Annotated[
    bool, typer.Option("--generate", help="Make a random password, and write it into the client's file.")
]
ClientFileOption = Annotated[
    Path | None,
    typer.Option(
        help="Write the keys there, as a tools.yml that only its owner can read. NAME.yml with --generate.",
        metavar="FILE",
    ),
]
ShowSecretOption = Annotated[
    bool, typer.Option("--show-secret", help="Show the password, instead of writing it into a file.")
]


class FileThere(KeroloxError):
    """A file that would be overwritten."""


def new_secret() -> str:
    import secrets

    return secrets.token_urlsafe(SECRET_BYTES)


def ask_password(name: str, *, from_stdin: bool, generate: bool) -> str:
    """A password: generated, from stdin, or typed twice."""
    if from_stdin and generate:
        raise OptionError("--generate", True, "either --generate or --password-stdin")
    if generate:
        return new_secret()
    if from_stdin:
        password = sys.stdin.readline(LINE_MAX).rstrip("\r\n")
        if not password.strip():
            raise OptionError("--password-stdin", "", "a line with the password on stdin")
        return password
    return str(
        typer.prompt(f"Password of {name}", hide_input=True, confirmation_prompt="Once more", err=True)
    )


def keys_text(name: str, password: str) -> str:
    """Keys as RocketMQ's tools.yml has them. Quoted: YAML would take a secret of digits for a number."""
    import json

    return f"accessKey: {json.dumps(name)}\nsecretKey: {json.dumps(password)}\n"


class ClientFile:
    """The keys of one user in a file of its own. It is prepared before the user is changed, so that a
    password that was made is never lost, and takes its place after."""

    def __init__(self, path: Path, name: str, password: str) -> None:
        """Raises FileThere when there is a file that does not hold older keys of the same user."""
        self.path = path.absolute()
        self._prepared = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        if self.path.exists():
            first = self.path.read_bytes()[:LINE_MAX].splitlines()[:1]
            if first != keys_text(name, "").encode().splitlines()[:1]:
                raise FileThere(f"{path} is there already, and not with keys of {name}: give another file")
        write_private(self._prepared, keys_text(name, password))

    def keep(self) -> None:
        os.replace(self._prepared, self.path)

    def drop(self) -> None:
        self._prepared.unlink(missing_ok=True)


def write_private(path: Path, text: str) -> None:
    """A new file that only its owner can read. Raises FileThere rather than to overwrite one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise FileThere(f"{path} is there already, and is not overwritten") from None
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
