"""mqadmin's commands about users and rules, all of them, and what they print."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from .driver import JavaDriver, JavaError
from .guarded import ADMIN, Guarded


class Tool:
    """mqadmin with the keys of a file, at one broker; what it prints, without the addresses."""

    def __init__(self, driver: JavaDriver, guarded: Guarded, tools: Path) -> None:
        self.driver = driver
        self.guarded = guarded
        tools.write_text(f"accessKey: {ADMIN.access_key}\nsecretKey: {ADMIN.secret_key}\n")
        self._tools = str(tools)
        self.address = guarded.broker.address

    def __call__(self, command: str, *words: str) -> list[list[str]]:
        """The printed words, line by line."""
        printed = self.driver.call(
            "mqadmin", args=[command, "-n", self.guarded.nameserver, *words], toolsFile=self._tools
        )["out"]
        lines = printed.replace(self.address, "BROKER").splitlines()
        return [line.split() for line in lines if line.strip()]

    def refused(self, command: str, *words: str) -> str:
        """What the broker said."""
        with pytest.raises(JavaError) as error:
            self(command, *words)
        found = re.search(r"CODE: (\d+)  DESC: ([^\n]*)", error.value.stack)
        assert found is not None, error.value
        return found.group(1)


def manage(tool: Tool, by: tuple[str, str]) -> Iterator[tuple[str, object]]:
    """Every command about users and rules; what each came to."""

    def run(command: str, *words: str) -> tuple[str, object]:
        return f"{command} {' '.join(words)}", tool(command, *by, *words)

    def fails(command: str, *words: str) -> tuple[str, object]:
        return f"{command} {' '.join(words)}", tool.refused(command, *by, *words)

    yield run("createUser", "-u", "bob", "-p", "bob's-secret")
    yield run("createUser", "-u", "carol", "-p", "carols", "-t", "Super")
    yield fails("createUser", "-u", "bob", "-p", "again")
    yield run("getUser", "-u", "bob")
    yield run("getUser", "-u", "nobody")
    yield run("listUser", "-f", "o")
    yield run("updateUser", "-u", "bob", "-p", "another")
    yield run("updateUser", "-u", "bob", "-s", "disable")
    yield run("updateUser", "-u", "carol", "-t", "Normal")
    yield fails("updateUser", "-u", "nobody", "-p", "x")
    yield run("getUser", "-u", "bob")
    yield run("listUser", "-f", "caro")
    rule = ("-s", "User:bob", "-r", "Topic:orders,Group:read*", "-a", "Pub,Sub", "-d", "Allow")
    yield run("createAcl", *rule)
    yield run("getAcl", "-s", "User:bob")
    yield run("createAcl", "-s", "User:carol", "-r", "*", "-a", "All", "-d", "Deny", "-i", "10.0.0.0/8,::1")
    yield run(
        "updateAcl", "-s", "User:bob", "-r", "Topic:orders", "-a", "Get", "-d", "Deny", "-i", "127.0.0.1"
    )
    yield run("getAcl", "-s", "User:bob")
    yield run("listAcl", "-s", "bob")
    yield run("listAcl", "-r", "read")
    yield fails("createAcl", "-s", "User:nobody", "-r", "Topic:a", "-a", "Pub", "-d", "Allow")
    yield fails("createAcl", "-s", "User:bob", "-r", "Queue:a", "-a", "Pub", "-d", "Allow")
    yield fails("createAcl", "-s", "User:bob", "-r", "Topic:a", "-a", "Any", "-d", "Allow")
    yield fails("createAcl", "-s", "User:bob", "-r", "Topic:a", "-a", "Pub", "-d", "Perhaps")
    yield fails("createAcl", "-s", "User:bob", "-r", "Topic:a", "-a", "Pub", "-d", "Allow", "-i", "10.0.0.*")
    yield fails("getAcl", "-s", "User:nobody")
    yield run("deleteAcl", "-s", "User:bob", "-r", "Topic:orders")
    yield run("getAcl", "-s", "User:bob")
    yield run("deleteAcl", "-s", "User:bob")
    yield run("getAcl", "-s", "User:bob")
    yield fails("deleteAcl", "-s", "User:bob")
    yield run("deleteUser", "-u", "bob")
    yield run("deleteUser", "-u", "bob")
    yield run("getUser", "-u", "bob")
    yield run("deleteUser", "-u", "carol")
    yield run("listUser")
    yield run("listAcl")
