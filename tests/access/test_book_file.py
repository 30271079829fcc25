"""The file of users and rules: several servers of a machine may share one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kerolox.access.book import Book
from kerolox.access.book_file import BookBroken, BookFile
from kerolox.clock import SYSTEM_CLOCK
from kerolox.protocol.bodies.access import User


def made(name: str) -> User:
    return User(username=name, password="secret")


async def opened(path: Path) -> BookFile:
    file = BookFile(str(path), SYSTEM_CLOCK)
    await file.load()
    return file


async def test_a_change_keeps_what_another_server_has_changed_since(tmp_path: Path) -> None:
    first, second = await opened(tmp_path / "access.json"), await opened(tmp_path / "access.json")
    await first.change(lambda book: book.create_user(made("alice")))
    await second.change(lambda book: book.create_user(made("bob")))  # has not looked at the file since
    assert list(second.book.users) == ["alice", "bob"]
    third = await opened(tmp_path / "access.json")
    assert list(third.book.users) == ["alice", "bob"]


async def test_changes_of_several_servers_at_once_are_all_kept(tmp_path: Path) -> None:
    files = [await opened(tmp_path / "access.json") for _ in range(4)]
    changes = [file.change(lambda book, n=f"u{n}-{at}": book.create_user(made(n)))  # type: ignore[misc]
               for at, file in enumerate(files) for n in range(5)]  # fmt: skip
    await asyncio.gather(*changes)
    assert len((await opened(tmp_path / "access.json")).book.users) == 20


async def test_a_change_that_is_refused_lets_the_next_one_in(tmp_path: Path) -> None:
    file = await opened(tmp_path / "access.json")

    def refuse(book: Book) -> None:
        raise ValueError

    with pytest.raises(ValueError):
        await file.change(refuse)
    await (await opened(tmp_path / "access.json")).change(lambda book: book.create_user(made("alice")))
    (tmp_path / "access.json").write_text("no book")
    with pytest.raises(BookBroken):  # and what is there is not overwritten
        await file.change(lambda book: book.create_user(made("bob")))
    assert (tmp_path / "access.json").read_text() == "no book"


async def test_a_look_at_the_file_finds_what_another_server_has_changed(tmp_path: Path) -> None:
    first, second = await opened(tmp_path / "access.json"), await opened(tmp_path / "access.json")
    await second.refresh()  # there is none yet
    await first.change(lambda book: book.create_user(made("alice")))
    await second.refresh()
    assert list(second.book.users) == ["alice"]
