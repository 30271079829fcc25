"""docs/REQUESTS.md: the requests that servers answer, made of the tables of rights and of their examples.

``python -m tests.docs.request_reference`` writes it anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kerolox.access.needs.broker import BROKER
from kerolox.access.needs.controller import CONTROLLER
from kerolox.access.needs.nameserver import NAMESERVER
from kerolox.access.rules import Rules
from kerolox.broker.admin.not_supported import REASONS
from kerolox.protocol.codes import request_name
from tests.access.test_needs_requests import EXAMPLES, OTHERS

PAGE = Path(__file__).parents[2] / "docs" / "REQUESTS.md"
SERVERS: dict[str, Rules] = {"Broker": BROKER, "Name server": NAMESERVER, "Controller": CONTROLLER}
HEAD = """\
# Requests

For authors of clients and tools that speak the remoting protocol, and for operators who write access rules:
the request codes that each server answers, and the rights that an example request needs with access control.
`T` and `U` are topics, `G` is a group. All other codes are answered with REQUEST_CODE_NOT_SUPPORTED.
Differences from RocketMQ are in [COMPATIBILITY.md](COMPATIBILITY.md). This page is generated from the code.
"""


def rights(code: int, rules: Rules) -> str:
    """The rights of the first example that needs any."""
    examples = [each.expected for each in (*EXAMPLES, *OTHERS) if each.code == code and each.rules is rules]
    needed = next(filter(None, examples), ())
    return ", ".join(needed).replace("Cluster:DefaultCluster", "the cluster") or "none: any known user"


def row(code: int, rules: Rules, refused: Mapping[int, str]) -> str:
    rule = rules[code]
    marks = [
        mark
        for mark, is_so in (
            ("administration", rule.administers),
            ("Super users only", rule.for_super),
            (f"rejected: {refused.get(code)}", code in refused),
        )
        if is_so
    ]
    cells = (str(code), f"`{request_name(code)}`", rights(code, rules), "; ".join(marks))
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def written() -> str:
    lines = [HEAD]
    for server, rules in SERVERS.items():
        refused = {int(code): why for code, why in REASONS.items()} if rules is BROKER else {}
        lines += [f"## {server}", "", "| code | name | rights of an example | |", "|--:|---|---|---|"]
        lines += [row(int(code), rules, refused) for code in sorted(rules)]
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(written())
