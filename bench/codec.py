"""Frames decoded and encoded per CPU second, conversation by conversation, beside a naive codec.

Decoding is what a server or client does with bytes that arrived: split frames, read the command, its
typed header, and the body where the protocol layer knows it. Frames come sixteen to a read.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from bench import conversations as speech
from bench import machine
from bench.conversations import Conversation, conversations
from bench.results import Result, Table, number, ratio
from bench.rounds import cpu_us, take_turns, typical_cost
from kerolox.protocol.command import decode_command
from kerolox.protocol.frame import BINARY, JSON, FrameSplitter
from kerolox.protocol.properties import unpack
from kerolox.protocol.record import decode_record, decode_records
from kerolox.protocol.record_scan import CHECK_BODY, scan

FRAMES_A_READ = 16
ENCODINGS = {"JSON": JSON, "binary": BINARY}

Work = Callable[[], object]


def decoder(conversation: Conversation, frames: int) -> Work:
    data = conversation.frame * frames
    splitter = FrameSplitter()
    header, read = conversation.header, conversation.read

    def work() -> None:
        for encoding, head, body in splitter.feed(data):
            command = decode_command(encoding, head, body)
            if header is not None:
                command.header(header)
            if read is not None:
                read(body)

    return work


def naive_decoder(conversation: Conversation, frames: int) -> Work:
    data = conversation.frame * frames
    read = conversation.naive_read

    def work() -> None:
        for table, body in speech.naive_frames(data):
            dict(table.get("extFields") or {})
            if read is not None:
                read(body)

    return work


def measure(arguments: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """``"decode route query"`` → variant → CPU µs per frame, of each round."""
    found: dict[str, dict[str, list[float]]] = {}
    spoken = {name: conversations(encoding) for name, encoding in ENCODINGS.items()}
    for place, plain in enumerate(spoken["JSON"]):
        frames = FRAMES_A_READ if len(plain.frame) < 4000 else 1
        decoders = {"naive": cpu_us(naive_decoder(plain, frames), per_call=frames, round_s=arguments.seconds)}
        encoders = {"naive": cpu_us(plain.naive_encode, round_s=arguments.seconds)}
        for name, listed in spoken.items():
            if place < len(listed):
                conversation = listed[place]
                decoders[name] = cpu_us(
                    decoder(conversation, frames), per_call=frames, round_s=arguments.seconds
                )
                encoders[name] = cpu_us(conversation.encode, round_s=arguments.seconds)
        found[f"decode {plain.name}"] = take_turns(decoders, arguments.rounds)
        found[f"encode {plain.name}"] = take_turns(encoders, arguments.rounds)
        print(".", end="", flush=True)
    print()
    return found


def measure_records(arguments: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    count = speech.RECORDS
    one, many = speech.record(), speech.records()
    (values,) = speech.naive_records(one)
    work: dict[str, tuple[Work, Work | None, int]] = {
        "encode one": (speech.record, lambda: speech.naive_record(values), 1),
        "decode one": (lambda: decode_record(one), lambda: speech.naive_records(one), 1),
        "decode one, with its properties": (
            lambda: unpack(decode_record(one).packed_properties),
            lambda: speech.naive_records(one),
            1,
        ),
        f"decode {count} of a pull": (
            lambda: decode_records(many),
            lambda: speech.naive_records(many),
            count,
        ),
        f"scan {count}": (lambda: scan(many), None, count),
        f"scan {count}, body CRC checked": (lambda: scan(many, check=CHECK_BODY), None, count),
    }
    found = {}
    for name, (ours, naive, per_call) in work.items():
        variants = {"ours": cpu_us(ours, per_call=per_call, round_s=arguments.seconds)}
        if naive is not None:
            variants["naive"] = cpu_us(naive, per_call=per_call, round_s=arguments.seconds)
        found[name] = take_turns(variants, arguments.rounds)
    return found


def frames_table(title: str, verb: str, found: dict[str, dict[str, list[float]]]) -> Table:
    rows = []
    for name, variants in found.items():
        if not name.startswith(verb):
            continue
        cost = {variant: typical_cost(values) for variant, values in variants.items()}
        row = [name.removeprefix(verb).strip(), number(cost["naive"])]
        for encoding in ENCODINGS:
            if encoding in cost:
                row += [number(cost[encoding]), number(1e6 / cost[encoding])]
            else:
                row += ["", ""]
        rows.append([*row, ratio(cost["naive"] / cost["JSON"])])
    columns = ["conversation", "naive, CPU µs"]
    for encoding in ENCODINGS:
        columns += [f"{encoding} header, CPU µs", f"{encoding} header, frames per CPU second"]
    return Table(title, [*columns, "naive / JSON"], rows)


def records_table(found: dict[str, dict[str, list[float]]]) -> Table:
    rows = []
    for name, variants in found.items():
        ours = typical_cost(variants["ours"])
        naive = typical_cost(variants["naive"]) if "naive" in variants else None
        row = [name, "" if naive is None else number(naive), number(ours), number(1e6 / ours)]
        rows.append([*row, "" if naive is None else ratio(naive / ours)])
    columns = [
        "records of a 128 B body",
        "naive, CPU µs",
        "ours, CPU µs",
        "records per CPU second",
        "naive / ours",
    ]
    return Table("Stored records", columns, rows, ["Per record, also where many are handled at once."])


def main(argv: list[str] | None = None) -> Result:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=11, help="of each variant")
    parser.add_argument("--seconds", type=float, default=0.02, help="of each round, of CPU time")
    arguments = parser.parse_args(argv)
    facts = machine.describe()
    flags = {
        "rounds": f"{arguments.rounds} of {arguments.seconds * 1000:g} ms of CPU time each, taking turns",
        "frames in a read": f"{FRAMES_A_READ}, or 1 where a frame has 4,000 bytes and more",
    }
    machine.show(facts | flags)
    found, records = measure(arguments), measure_records(arguments)
    result = Result(
        "codec",
        "Codec",
        [
            "CPU time of the protocol layer alone, without sockets. Decoding includes the typed header, and "
            "the body of batches, pull answers, heartbeats and registrations. The naive codec is the "
            "yardstick: Python's json module, dicts, and struct, with JSON headers, doing the same for the "
            "same bytes but for checks and types. A figure is the 20th percentile of its "
            "rounds, counted from the best.",
        ],
        facts,
        flags,
        [
            frames_table("Frames decoded", "decode", found),
            frames_table("Frames encoded", "encode", found),
            records_table(records),
        ],
        {**found, **{f"record: {name}": values for name, values in records.items()}},
    )
    result.show()
    result.save()
    return result


if __name__ == "__main__":
    main()
