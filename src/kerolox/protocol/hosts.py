"""Addresses such as ``10.0.0.1:10911`` or ``[2001:db8::1]:10911``, as text and in the form of records and
ids.

In a record a host is 4 or 16 address bytes and a 32-bit port, see MESSAGE.md.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import Final

from kerolox.errors import InvalidRequest, ProtocolError

IPV4_HOST_BYTES: Final = 8
IPV6_HOST_BYTES: Final = 20
PORT_MAX: Final = 65535
ADDRESS_LENGTH_MAX: Final = 100  # with a zone; the longest address has 45

_PORT = struct.Struct(">i")
_CACHE_SIZE: Final = 4096


@lru_cache(_CACHE_SIZE)
def host_bytes(address: str) -> bytes:
    """Return the 8 or 20 bytes of ``ip:port``. Names are not resolved."""
    if len(address) > ADDRESS_LENGTH_MAX:
        raise InvalidRequest(f"address {address[:ADDRESS_LENGTH_MAX]!r}...: expected ip:port or [ipv6]:port")
    host, colon, port = address.rpartition(":")
    if not colon or not port.isascii() or not port.isdecimal() or int(port[:6]) > PORT_MAX:
        raise InvalidRequest(
            f"address {address!r}: expected ip:port or [ipv6]:port with a port up to {PORT_MAX}"
        )
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    return ip_bytes(host) + _PORT.pack(int(port))


@lru_cache(_CACHE_SIZE)
def host_text(host: bytes) -> str:
    """Return the address text of 8 or 20 host bytes."""
    if len(host) not in (IPV4_HOST_BYTES, IPV6_HOST_BYTES):
        raise ProtocolError(f"a host of {len(host)} bytes; it has 8 (IPv4) or 20 (IPv6)")
    ip = ip_text(host[:-4])
    (port,) = _PORT.unpack_from(host, len(host) - 4)
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"


def ip_bytes(ip: str) -> bytes:
    """Return the 4 or 16 bytes of an address without port.

    An IPv4-mapped IPv6 address (``::ffff:10.0.0.1``, as reported by dual-stack sockets) becomes an IPv4
    address, as in Java; a zone (``%eth0``) is dropped, because it is local to one host.
    """
    try:
        if ":" not in ip:
            return IPv4Address(ip).packed
        address = IPv6Address(ip.partition("%")[0])
    except AddressValueError as error:
        raise InvalidRequest(f"address {ip!r} is not an IP address: {error}") from error
    return address.ipv4_mapped.packed if address.ipv4_mapped else address.packed


def ip_text(ip: bytes) -> str:
    """Return the text of 4 or 16 address bytes."""
    if len(ip) == 4:
        return str(IPv4Address(ip))
    if len(ip) != 16:
        raise ProtocolError(f"an address of {len(ip)} bytes; it has 4 (IPv4) or 16 (IPv6)")
    address = IPv6Address(ip)
    return str(address.ipv4_mapped or address)
