"""The ``kerolox`` command. Each command is a file beside this one.

Command files import nothing heavy at their top: servers, clients and Rich are imported when a command
that needs them runs, so that ``kerolox --help`` and completions answer at once.
"""

from __future__ import annotations

from typing import Annotated

import typer

from kerolox.cli import (
    access,
    bench,
    broker,
    cluster,
    controller,
    demo,
    dlq,
    etcd_member,
    group,
    kv,
    message,
    nameserver,
    nameservers,
    pipeline,
    send,
    store,
    store_resync,
    tail,
    timer,
    topic,
    up,
    version,
)

EXAMPLE = "Example: kerolox up --data ./kerolox-data"

app = typer.Typer(
    name="kerolox",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback(epilog=EXAMPLE)
def main(
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", callback=version.show_short, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
    access_key: Annotated[
        str | None,
        typer.Option(
            help="Sign requests as this user. Its secret is read from KEROLOX_SECRET_KEY.", metavar="NAME"
        ),
    ] = None,
    keys_file: Annotated[
        str | None,
        typer.Option(
            help="Sign requests with the keys in this file (the form of RocketMQ's tools.yml).",
            metavar="FILE",
        ),
    ] = None,
    tls: Annotated[bool | None, typer.Option("--tls/--no-tls", help="Connect to servers with TLS.")] = None,
    tls_ca: Annotated[
        str | None, typer.Option(help="File with the trusted CA certificates.", metavar="PEM")
    ] = None,
    tls_certificate: Annotated[
        str | None, typer.Option(help="Client certificate file.", metavar="PEM")
    ] = None,
    tls_key: Annotated[
        str | None, typer.Option(help="Private key of the client certificate.", metavar="PEM")
    ] = None,
    tls_verify: Annotated[
        bool | None,
        typer.Option("--tls-verify/--no-tls-verify", help="Verify server certificates."),
    ] = None,
) -> None:
    """Run and administer kerolox, Apache RocketMQ rebuilt in Python."""
    nameservers.use(access_key, keys_file, tls, tls_ca, tls_certificate, tls_key, tls_verify)


app.command("up", epilog=up.EXAMPLE)(up.serve)
app.command("nameserver", epilog=nameserver.EXAMPLE)(nameserver.serve)
app.add_typer(broker.app, name="broker")
app.add_typer(controller.app, name="controller")
app.add_typer(cluster.app, name="cluster")
app.add_typer(access.app, name="access")
app.add_typer(topic.app, name="topic")
app.add_typer(group.app, name="group")
app.add_typer(message.app, name="message")
app.add_typer(dlq.app, name="dlq")
app.command("send", epilog=send.EXAMPLE)(send.send)
app.command("tail", epilog=tail.EXAMPLE)(tail.follow)
app.add_typer(timer.app, name="timer")
app.add_typer(kv.app, name="kv")
store.app.command("resync", epilog=store_resync.EXAMPLE)(store_resync.resync)
app.add_typer(store.app, name="store")
app.add_typer(pipeline.app, name="pipeline")
app.add_typer(bench.app, name="bench")
app.command("etcd-member", hidden=True)(etcd_member.serve)
app.command("version", epilog=version.EXAMPLE)(version.show)
app.command("demo", epilog=demo.EXAMPLE)(demo.play)
