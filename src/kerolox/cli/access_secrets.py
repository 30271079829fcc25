"""Input and output of secrets. Never on a command line, which every user of the machine can read; on a
terminal only on request."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from kerolox.access.key_file import LINE_MAX, new_secret
from kerolox.errors import OptionError

StdinOption = Annotated[
    bool, typer.Option("--password-stdin", help="Read the password from the first line of stdin.")
]
GenerateOption = Annotated[
    bool, typer.Option("--generate", help="Generate a random password and write it to the client file.")
]
ClientFileOption = Annotated[
    Path | None,
    typer.Option(
        help="File for the keys, in the form of tools.yml, readable only by its owner. Default with "
        "--generate: NAME.yml.",
        metavar="FILE",
    ),
]
ShowSecretOption = Annotated[
    bool, typer.Option("--show-secret", help="Print the password instead of writing it to a file.")
]


def ask_password(name: str, *, from_stdin: bool, generate: bool) -> str:
    """Return a password: generated, read from stdin, or typed twice."""
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
        typer.prompt(f"Password of {name}", hide_input=True, confirmation_prompt="Repeat it", err=True)
    )
