"""Reference tables are those of the code: settings, requests, metrics."""

from __future__ import annotations

import ast

from tests.docs import metric_reference, request_reference, settings_reference
from tests.docs.source_names import SOURCE, tree_of


def test_settings() -> None:
    """Every option of every server has its line."""
    expected = settings_reference.written()
    assert settings_reference.PAGE.read_text() == expected, (
        "python -m tests.docs.settings_reference writes it anew"
    )
    assert expected.count("\n| `") > 200


def test_requests() -> None:
    """Every request code that a server answers has its line, with the rights of an example."""
    expected = request_reference.written()
    assert request_reference.PAGE.read_text() == expected, (
        "python -m tests.docs.request_reference writes it anew"
    )
    assert expected.count("\n| ") > 150


def test_metrics() -> None:
    """Every metric of our own has its line."""
    expected = metric_reference.written()
    assert metric_reference.PAGE.read_text() == expected, (
        "python -m tests.docs.metric_reference writes it anew"
    )


def test_every_metric_is_found() -> None:
    """The table is made of calls of a few forms; a metric that is written in another form is noticed here."""
    named = {
        node.value
        for server in metric_reference.SERVERS
        for path in (SOURCE / server).rglob("*.py")
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and node.value.startswith("kerolox_")
        and node.value.isidentifier()
    }
    assert named == {metric.name for metric in metric_reference.metrics()}
    assert len(named) > 30
