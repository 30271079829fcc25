"""What access control costs: our broker open and secured, and Apache's secured, under the same load.

Secured means that every request is signed by a user who is no Super user, and allowed by a rule of that user.
Frames are made, and signed, beforehand, so the load is the same work for the generator. Every broker runs
alone on its core while it is measured: the others are held still.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial

from tests.peers.jars import Jars, PeersUnavailable, get_jars
from tests.peers.java import find_java

from bench import machine
from bench.broker_peers import APACHE, BROKER_FLAGS, OURS, QUEUES, BenchBroker
from bench.generator import Disturbed, Generator, Run
from bench.results import Result, Table, number, ratio
from bench.rounds import take_turns, typical_cost, typical_rate
from kerolox.net.signing import Credentials
from kerolox.protocol.batch import encode_batch
from kerolox.protocol.codes import Language, RequestCode
from kerolox.protocol.command import Command, request
from kerolox.protocol.flags import PULL_SUBSCRIPTION
from kerolox.protocol.header import Header, encode_fields
from kerolox.protocol.headers.pull import PullRequest
from kerolox.protocol.headers.send import SendRequestV2
from kerolox.protocol.properties import pack
from kerolox.protocol.record import decode_records
from kerolox.protocol.signature import sign

OPEN, SECURED, APACHE_OPEN, APACHE_SECURED = (
    f"{OURS}, open",
    f"{OURS}, secured",
    f"{APACHE}, open",
    f"{APACHE}, secured",
)
TOPIC, GROUP = "bench-access", "bench-access-group"
ADMIN = Credentials("admin", "the administrator's secret")
USER = Credentials("bench", "the secret of the bench")
SENDS, BATCHES, PULLS = (
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.PULL_MESSAGE,
)
OPAQUE_FIRST = 1_000_000  # the generator replaces it; a signature does not cover it
FRAMES = 256  # different ones in a load
BATCH = 32
BACKLOG = 1024  # messages in each queue, for the pulls
REPEATS_MAX = 5
REFUSALS_MAX = 100  # Apache's pushes some back while it is busy with itself
WARM_UP_S = {OURS: 1.0, APACHE: 15.0}  # with each load; a JVM compiles what runs often


@dataclass(frozen=True)
class Load:
    name: str
    kind: str  # send, batch, pull
    size: int
    connections: int
    depth: int

    @property
    def messages(self) -> int:
        """In each request."""
        return 1 if self.kind == "send" else BATCH


LOADS = (
    Load("sends of 128 B, 64 in flight on one connection", "send", 128, 1, 64),
    Load("sends of 128 B, 16 in flight on each of 16 connections", "send", 128, 16, 16),
    Load("sends of 128 B, one in flight on each of 64 connections", "send", 128, 64, 1),
    Load("sends of 1 KiB, 64 in flight on one connection", "send", 1024, 1, 64),
    Load(f"batches of {BATCH} of 128 B, 16 in flight on one connection", "batch", 128, 1, 16),
    Load(f"pulls of {BATCH} of 128 B, 16 in flight on one connection", "pull", 128, 1, 16),
)


# --- frames ---------------------------------------------------------------------------------------


def frame(code: int, header: Header, body: bytes, own: Credentials | None) -> bytes:
    """A request as a Java client writes it, with a JSON header."""
    command: Command = request(code, header, body, opaque=OPAQUE_FIRST)
    command.language = Language.JAVA
    if own is not None:
        command.fields.update(sign(command.fields, body, own.access_key, own.secret_key))
    return command.encode()


def send_header(number_: int, *, batch: bool = False) -> SendRequestV2:
    unique = {"UNIQ_KEY": f"7F0000010001{number_:020X}", "WAIT": "true"}
    return SendRequestV2(
        producer_group="bench-producers",
        topic=TOPIC,
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=number_ % QUEUES,
        sys_flag=0,
        born_timestamp=int(time.time() * 1000),
        flag=0,
        properties=pack(unique).decode(),
        reconsume_times=0,
        unit_mode=False,
        batch=batch,
        broker_name="broker-a",
    )


def batch_body(size: int) -> bytes:
    properties = pack({"UNIQ_KEY": "7F0000010001" + "0" * 20, "WAIT": "true"})
    return encode_batch([(0, b"x" * size, properties)] * BATCH)


def pull_header(number_: int) -> PullRequest:
    return PullRequest(
        consumer_group=GROUP,
        topic=TOPIC,
        queue_id=number_ % QUEUES,
        queue_offset=number_ * BATCH % (BACKLOG - BATCH),
        max_msg_nums=BATCH,
        sys_flag=PULL_SUBSCRIPTION,
        commit_offset=0,
        suspend_timeout_millis=1000,
        sub_version=0,
        subscription="*",
        expression_type="TAG",
        broker_name="broker-a",
    )


def frames(load: Load, own: Credentials | None) -> bytes:
    if load.kind == "pull":
        made = (frame(PULLS, pull_header(one), b"", own) for one in range(FRAMES))
    elif load.kind == "batch":
        body = batch_body(load.size)
        made = (frame(BATCHES, send_header(one, batch=True), body, own) for one in range(FRAMES))
    else:
        made = (frame(SENDS, send_header(one), b"x" * load.size, own) for one in range(FRAMES))
    return b"".join(made)


# --- brokers --------------------------------------------------------------------------------------

SECURE: dict[str, object] = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": json.dumps({"username": ADMIN.access_key, "password": ADMIN.secret_key}),
    "innerClientAuthenticationCredentials": json.dumps(
        {"accessKey": ADMIN.access_key, "secretKey": ADMIN.secret_key}
    ),
}
_AUTH = "org.apache.rocketmq.auth"
APACHE_SECURE: dict[str, object] = {
    **SECURE,
    "authenticationMetadataProvider": f"{_AUTH}.authentication.provider.LocalAuthenticationMetadataProvider",
    "authorizationMetadataProvider": f"{_AUTH}.authorization.provider.LocalAuthorizationMetadataProvider",
}


class Party:
    """One broker with its topic, its user, and messages to pull."""

    def __init__(self, name: str, jars: Jars | None) -> None:
        self.kind = APACHE if name.startswith(APACHE) else OURS
        is_secured = name in (SECURED, APACHE_SECURED)
        properties: dict[str, object] = {"tls.server.mode": "disabled"} if self.kind == OURS else {}
        if is_secured:
            properties |= APACHE_SECURE if self.kind == APACHE else SECURE
        self.credentials = USER if is_secured else None
        self.broker = BenchBroker(self.kind, jars, properties, credentials=ADMIN if is_secured else None)
        try:
            self.broker.create_topic(TOPIC)
            if is_secured:
                self._let_in()
            self._fill()
        except BaseException:
            self.broker.close()
            raise

    def _let_in(self) -> None:
        name = USER.access_key
        entries = [
            {"resource": resource, "actions": actions, "decision": "Allow"}
            for resource, actions in ((f"Topic:{TOPIC}", ["Pub", "Sub"]), (f"Group:{GROUP}", ["Sub"]))
        ]
        subject = f"User:{name}"
        for code, fields, body in (
            (
                RequestCode.AUTH_CREATE_USER,
                {"username": name},
                {"username": name, "password": USER.secret_key, "userType": "Normal"},
            ),
            (
                RequestCode.AUTH_CREATE_ACL,
                {"subject": subject},
                {"subject": subject, "policies": [{"policyType": "Custom", "entries": entries}]},
            ),
        ):
            self._check(self.broker.ask(code, fields, json.dumps(body).encode()).code, code)

    def _fill(self) -> None:
        body = batch_body(128)
        for number_ in range(BACKLOG // BATCH * QUEUES):
            fields = encode_fields(send_header(number_, batch=True))
            self._check(self.broker.ask(BATCHES, fields, body).code, BATCHES)
        answer = self.broker.ask(PULLS, encode_fields(pull_header(1)))
        self._check(answer.code, PULLS)
        if len(list(decode_records(answer.body))) != BATCH:
            raise RuntimeError(f"{self.broker.kind} does not give {BATCH} messages to a pull")

    def _check(self, code: int, asked: int) -> None:
        if code != 0:
            raise RuntimeError(f"{self.broker.kind} answers {code} to request {asked}")


# --- measuring ------------------------------------------------------------------------------------


def measure(
    names: list[str],
    loads: tuple[Load, ...],
    jars: Jars | None,
    generator: Generator,
    arguments: argparse.Namespace,
) -> dict[Load, dict[str, list[Run]]]:
    found: dict[Load, dict[str, list[Run]]] = {}
    parties: dict[str, Party] = {}
    try:
        for name in names:
            parties[name] = Party(name, jars)

        def run(name: str, load: Load, seconds: float) -> Run:
            party = parties[name]
            made = frames(load, party.credentials)
            others = [other.broker.pid for other in parties.values() if other is not party]
            for _ in range(REPEATS_MAX):
                with machine.held_still(others):
                    try:
                        return generator.run(
                            made,
                            party.broker.port,
                            party.broker.pid,
                            load.connections,
                            load.depth,
                            seconds,
                            arguments.settle,
                            refusals_max=REFUSALS_MAX if party.kind == APACHE else 0,
                        )
                    except Disturbed as disturbed:
                        print(f"repeated: {disturbed}", flush=True)
            raise RuntimeError("the machine is too busy to measure anything")

        # On all cores: a JVM compiles beside its own work, and that is not what is measured.
        for load in loads:
            for name, party in parties.items():
                run(name, load, WARM_UP_S[party.kind] / (2 if arguments.quick else 1))
        for party in parties.values():
            machine.pin(party.broker.pid, machine.cores()[0])
        for load in loads:
            turns: dict[str, Callable[[], Run]] = {
                name: partial(run, name, load, arguments.seconds) for name in names
            }
            found[load] = take_turns(turns, arguments.rounds)
            show_progress(load, found[load])
    finally:
        for party in parties.values():
            party.broker.close()
    return found


def costs(load: Load, runs: list[Run]) -> list[float]:
    """CPU microseconds of the broker per message, of each run."""
    return [run.server_us / load.messages for run in runs]


def show_progress(load: Load, found: dict[str, list[Run]]) -> None:
    for name, runs in found.items():
        shown = " ".join(f"{cost:.2f}" for cost in costs(load, runs))
        busy = max(run.load_busy for run in runs)
        print(f"{load.name}: {name}: CPU µs each: {shown}; load at most {busy:.0%} busy", flush=True)


def tables(found: dict[Load, dict[str, list[Run]]]) -> list[Table]:
    def cost(load: Load, name: str) -> float:
        return typical_cost(costs(load, found[load][name]))

    def rate(load: Load, name: str) -> float:
        return typical_rate([run.rate * load.messages for run in found[load][name]])

    names = list(next(iter(found.values())))
    more = []
    for open_, secured in ((OPEN, SECURED), (APACHE_OPEN, APACHE_SECURED)):
        if open_ not in names or secured not in names:
            continue
        rows = [
            [
                load.name,
                number(cost(load, open_)),
                number(cost(load, secured)),
                f"{cost(load, secured) / cost(load, open_) - 1:+.0%}",
                number(rate(load, open_)),
                number(rate(load, secured)),
            ]
            for load in found
        ]
        who = open_.partition(",")[0]
        columns = ["open, CPU µs", "secured, CPU µs", "more", "open, messages/s", "secured, messages/s"]
        more.append(
            Table(f"What access control costs {who}'s broker, for each message", ["load", *columns], rows)
        )
    if APACHE_SECURED in names:
        rows = [
            [
                load.name,
                *(number(1e6 / cost(load, name)) for name in (SECURED, APACHE_SECURED)),
                ratio(cost(load, APACHE_SECURED) / cost(load, SECURED)),
                *(number(rate(load, name)) for name in (SECURED, APACHE_SECURED)),
                ratio(rate(load, SECURED) / rate(load, APACHE_SECURED)),
            ]
            for load in found
        ]
        columns = [
            f"{OURS}, messages per CPU second",
            f"{APACHE}, messages per CPU second",
            "ratio",
            f"{OURS}, messages/s",
            f"{APACHE}, messages/s",
            "ratio of rates",
        ]
        more.append(Table("Both brokers secured", ["load", *columns], rows))
    return more


def main(argv: list[str] | None = None) -> Result:
    parser = argparse.ArgumentParser(prog="python -m bench access", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rounds, in three minutes")
    parser.add_argument("--rows", help="only loads whose name has one of these texts, joined by semicolons")
    parser.add_argument("--rounds", type=int, help="of each load on each broker")
    parser.add_argument("--seconds", type=float, help="of each round")
    parser.add_argument(
        "--settle", type=float, default=0.3, help="load before each round that is not counted"
    )
    parser.add_argument("--no-apache", action="store_true")
    parser.add_argument("--no-save", action="store_true", help="print the results only")
    arguments = parser.parse_args(argv)
    arguments.rounds = arguments.rounds or (3 if arguments.quick else 9)
    arguments.seconds = arguments.seconds or (1.0 if arguments.quick else 2.0)
    words = (arguments.rows or "").lower().split(";")
    loads = tuple(load for load in LOADS if any(word in load.name.lower() for word in words))
    jars, java = None, None
    names = [OPEN, SECURED]
    if not arguments.no_apache:
        try:
            java, jars = find_java(), get_jars()
            names += [APACHE_OPEN, APACHE_SECURED]
        except PeersUnavailable as missing:
            print(f"without Apache's broker: {missing}")
    facts = machine.describe(java.path if java else None)
    server_core, load_core = machine.cores()
    with Generator(load_core) as generator:
        flags = {
            "load generator": f"{generator.name}, JSON headers",
            "pinned": f"broker to core {server_core}, load to core {load_core}; other brokers stand still",
            "rounds": f"{arguments.rounds} of {arguments.seconds:g} s each, taking turns",
            "secured": "authenticationEnabled and authorizationEnabled; a Normal user with a rule for the "
            "topic and one for the group",
            "broker options": "defaults of both otherwise, asynchronous flush",
        }
        if jars is not None:
            flags["Apache RocketMQ"] = jars.version
            flags["JVM flags of the broker"] = " ".join(BROKER_FLAGS)
            theirs, ours = WARM_UP_S[APACHE], WARM_UP_S[OURS]
            flags["warm-up"] = f"{theirs:g} s of each load for Apache's, {ours:g} s for ours, on all cores"
        machine.show(facts | flags)
        found = measure(names, loads, jars, generator, arguments)
    result = Result(
        "access",
        "Access control",
        [
            "Sends and pulls at brokers that take everything from everybody, and at brokers where every "
            "request is signed and needs a right, from the same load generator, in turns. A figure is the "
            "20th percentile of its rounds, counted from the best. CPU time is that of the broker process, "
            "all threads, for each message.",
        ],
        facts,
        flags,
        tables(found),
        {
            load.name: {name: [asdict(run) for run in runs] for name, runs in by_name.items()}
            for load, by_name in found.items()
        },
    )
    result.show()
    if not arguments.no_save:
        result.save()
    return result


if __name__ == "__main__":
    main()
