"""``epochFileCheckpoint``: the epochs of a log, in the text format of RocketMQ's brokers. No I/O.

Line 1 is the number of epochs, line 2 the CRC of the following lines (its lower 31 bits; 0: do not verify),
then one ``number-start`` per line. An epoch ends where the next one begins.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence

from kerolox.errors import ProtocolError
from kerolox.protocol.ha_epochs import Epoch, check_order
from kerolox.protocol.limits import INT32_MAX, INT64_MAX

EPOCH_FILE = "epochFileCheckpoint"

_HEAD = re.compile(rb"(\d{1,9})\r?\n(\d{1,10})\r?\n")
_LINE = re.compile(rb"(\d{1,10})-(\d{1,19})\r?\n?")


def encode_epochs(epochs: Sequence[Epoch]) -> bytes:
    """Encode the file. RocketMQ never writes an empty list and treats one as a damaged file: it then reads
    the backup beside it."""
    check_order(epochs)
    lines = b"".join(b"%d-%d\n" % epoch for epoch in epochs)
    return b"%d\n%d\n%b" % (len(epochs), _crc(lines), lines)


def decode_epochs(data: bytes) -> tuple[Epoch, ...]:
    """Decode the epochs of a file. Raises ProtocolError if it is torn, damaged or of another format."""
    head = _HEAD.match(data)
    if head is None:
        raise ProtocolError(
            f"{EPOCH_FILE}: its first lines are {data[:40]!r}, expected a count and a CRC", at=0
        )
    count, crc = int(head[1]), int(head[2])
    rest = data[head.end() :]
    if crc and crc != _crc(rest):
        raise ProtocolError(
            f"{EPOCH_FILE}: the CRC of its {len(rest)} bytes of epochs is {_crc(rest)}, it says {crc}",
            at=head.end(),
        )
    lines = rest.splitlines()
    if len(lines) != count:
        raise ProtocolError(f"{EPOCH_FILE}: {len(lines)} epochs, it says {count}", at=head.end())
    epochs = tuple(_epoch(line) for line in lines)
    check_order(epochs)
    return epochs


def _epoch(line: bytes) -> Epoch:
    found = _LINE.fullmatch(line)
    if found is None:
        raise ProtocolError(f"{EPOCH_FILE}: a line {line[:40]!r}, expected number-start")
    epoch = Epoch(int(found[1]), int(found[2]))
    if epoch.number > INT32_MAX or epoch.start > INT64_MAX:
        raise ProtocolError(f"{EPOCH_FILE}: a line {line!r}, numbers of 32 and 64 bits are less")
    return epoch


def _crc(lines: bytes) -> int:
    return zlib.crc32(lines) & 0x7FFFFFFF
