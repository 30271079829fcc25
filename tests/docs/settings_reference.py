"""docs/SETTINGS.md: the settings of servers, made of the options themselves.

``python -m tests.docs.settings_reference`` writes it anew.
"""

from __future__ import annotations

import socket
from pathlib import Path

from kerolox.broker.options import BrokerOptions
from kerolox.controller.options import ControllerOptions
from kerolox.nameserver.options import NamesrvOptions
from kerolox.options import Options, Spec, specs

PAGE = Path(__file__).parents[2] / "docs" / "SETTINGS.md"
ROLES: dict[str, type[Options]] = {
    "Broker": BrokerOptions,
    "Name server": NamesrvOptions,
    "Controller": ControllerOptions,
}
HEAD = """\
# Settings

For operators who write the configuration file of a broker, name server or controller: every key, its default
and its meaning. [OPERATIONS.md](OPERATIONS.md#settings-that-matter) names the few that need a decision, and
[COMPATIBILITY.md](COMPATIBILITY.md#absent) those of RocketMQ that are rejected.

```console
$ kerolox broker -c broker.conf --print-config    # print the effective values and the source of each
$ kerolox broker --set flushDiskType=SYNC_FLUSH
```

A value comes from, in this order: command line, environment variable (`KEROLOX_` and the name in the code, as
`KEROLOX_LISTEN_PORT`), file, default. Keys marked *live* can be changed while the server runs:
`mqadmin updateBrokerConfig`. This page is generated from the code.
"""


def row(spec: Spec) -> str:
    default = shown_default(spec)
    about = spec.about + (f" Expected: {spec.expected}." if _is_limited(spec) else "")
    cells = (f"`{spec.key}`", f"`{default}`" if default else "", "live" if spec.changeable else "", about)
    return f"| {' | '.join(_cell(cell) for cell in cells)} |"


def shown_default(spec: Spec) -> str:
    """Return the default without the names of this machine."""
    text = spec.show(spec.default)
    if text == socket.gethostname():
        return "HOST NAME"
    return text.replace(str(Path.home()), "~", 1)


def _is_limited(spec: Spec) -> bool:
    return spec.kind is not bool and not spec.expected.startswith("text of at most")


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def table(rows: list[Spec]) -> list[str]:
    return ["| key | default | | |", "|---|---|---|---|", *map(row, rows), ""]


def written() -> str:
    by_role = {role: {spec.key: spec for spec in specs(options)} for role, options in ROLES.items()}
    first, *others = by_role.values()
    shared = [
        key for key in first if all(key in other and row(other[key]) == row(first[key]) for other in others)
    ]
    lines = [HEAD, "## All servers", "", *table([first[key] for key in shared])]
    for role, options in by_role.items():
        own = [spec for key, spec in options.items() if key not in shared]
        lines += [f"## {role}", "", *table(own)]
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(written())
