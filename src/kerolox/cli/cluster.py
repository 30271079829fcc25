"""``kerolox cluster``"""

from __future__ import annotations

import typer

from kerolox.cli.nameservers import DEFAULT_ADDRESS, NameServerOption, NameServers, run_with
from kerolox.cli.output import JsonFlag, Table, one_line_errors, output

app = typer.Typer(help="Clusters and their brokers.", no_args_is_help=True)


@app.command("list", epilog="Example: kerolox cluster list -n 10.0.0.1:9876;10.0.0.2:9876")
@one_line_errors
def list_clusters(nameserver: NameServerOption = DEFAULT_ADDRESS, json: JsonFlag = False) -> None:
    """List clusters, and the brokers that are alive in each."""
    from kerolox.protocol.bodies.routes import ClusterInfo
    from kerolox.protocol.codes import RequestCode

    async def work(servers: NameServers) -> ClusterInfo:
        return ClusterInfo.decode((await servers.ask(RequestCode.GET_BROKER_CLUSTER_INFO)).body)

    info = run_with(nameserver, work)
    brokers = [
        {
            "cluster": cluster,
            "broker": name,
            "id": id,
            "role": "master" if id == 0 else "slave",
            "address": address,
            "zone": info.broker_addr_table[name].zone_name,
        }
        for cluster, names in sorted(info.cluster_addr_table.items())
        for name in sorted(names)
        if name in info.broker_addr_table
        for id, address in sorted(info.broker_addr_table[name].broker_addrs.items())
    ]
    columns = ("cluster", "broker", "id", "role", "address", "zone")
    output(json).show(brokers, Table(columns, [tuple(broker.values()) for broker in brokers]))
