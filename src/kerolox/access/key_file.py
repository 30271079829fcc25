"""Generated passwords, and the files that keep them: readable only by their owner, never overwritten."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path

from kerolox.errors import KeroloxError

FIRST_USER, INNER_USER = "admin", "inner"  # users of a new access file: for people, and for servers
SECRET_BYTES = 24  # of randomness; 32 characters
LINE_MAX = 4096


class FileThere(KeroloxError):
    """The file to write exists."""


def new_secret() -> str:
    return secrets.token_urlsafe(SECRET_BYTES)


def keys_text(name: str, password: str) -> str:
    """Return the keys in the form of RocketMQ's tools.yml. Quoted, since YAML reads digits as a number."""
    return f"accessKey: {json.dumps(name)}\nsecretKey: {json.dumps(password)}\n"


class ClientFile:
    """Key file of one user.

    A temporary file is written before the user is changed, so that a generated password is never lost;
    :meth:`keep` then renames it.
    """

    def __init__(self, path: Path, name: str, password: str) -> None:
        """Raises FileThere if the file exists and does not have keys of the same user."""
        self.path = path.absolute()
        self._prepared = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        if self.path.exists():
            first = self.path.read_bytes()[:LINE_MAX].splitlines()[:1]
            if first != keys_text(name, "").encode().splitlines()[:1]:
                raise FileThere(f"{path} exists and does not contain keys of {name}. Choose another file")
        write_private(self._prepared, keys_text(name, password))

    def keep(self) -> None:
        os.replace(self._prepared, self.path)

    def drop(self) -> None:
        self._prepared.unlink(missing_ok=True)


def write_private(path: Path, text: str) -> None:
    """Create a file that only its owner can read. Raises FileThere if it exists."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise FileThere(f"{path} exists and is not overwritten. Remove it or choose another file") from None
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
