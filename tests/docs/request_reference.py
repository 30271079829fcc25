"""docs/REQUESTS.md: the requests that servers answer, made of the tables of rights and of their examples.

``python -m tests.docs.request_reference`` writes it anew.
"""

from __future__ import annotations

from pathlib import Path

from kerolox.front.needs import Rule
from kerolox.front.rows import Row
from kerolox.protocol.codes import request_name
from tests.access.test_needs_requests import example_needs
from tests.served import (
    BROKER,
    BROKER_ROWS,
    CONTROLLER,
    CONTROLLER_ROWS,
    NAMESERVER,
    NAMESERVER_ROWS,
    Rules,
)

PAGE = Path(__file__).parents[2] / "docs" / "REQUESTS.md"
SERVERS = {
    "Broker": (BROKER_ROWS, BROKER),
    "Name server": (NAMESERVER_ROWS, NAMESERVER),
    "Controller": (CONTROLLER_ROWS, CONTROLLER),
}
HEAD = """\
# Requests

For authors of clients and tools that speak the remoting protocol, and for operators who write access rules:
the request codes that each server answers, and the rights that an example request needs with access control.
`T` and `U` are topics, `G` is a group. All other codes are answered with REQUEST_CODE_NOT_SUPPORTED.
Differences from RocketMQ are in [COMPATIBILITY.md](COMPATIBILITY.md). This page is generated from the code.
"""


def rights(code: int, rules: Rules) -> str:
    needed = ", ".join(example_needs(code, rules))
    return needed.replace("Cluster:DefaultCluster", "the cluster") or "none: any known user"


def marks(row: Row) -> str:
    rule: Rule = row.rule
    named = (("administration", rule.administers), ("Super users only", rule.for_super))
    return "; ".join([mark for mark, is_so in named if is_so] + ["rejected"] * bool(row.rejected))


def line(row: Row, rules: Rules) -> str:
    code = int(row.code)
    cells = (str(code), f"`{request_name(code)}`", row.description, rights(code, rules), marks(row))
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def written() -> str:
    lines = [HEAD]
    for server, (rows, rules) in SERVERS.items():
        lines += [f"## {server}", "", "| code | name | | rights of an example | |", "|--:|---|---|---|---|"]
        lines += [line(rows[code], rules) for code in sorted(rows)]
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(written())
