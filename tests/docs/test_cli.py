"""docs/CLI.md: the reference is that of the commands."""

from __future__ import annotations

from tests.docs import cli_reference


def test_the_reference_is_made_of_the_commands() -> None:
    expected = cli_reference.written()
    assert cli_reference.PAGE.read_text() == expected, "python -m tests.docs.cli_reference writes it anew"
    assert expected.count("**`kerolox ") > 30
