"""A certificate that a server signs itself, so that TLS works without configuration.

It prevents eavesdropping and proves nothing about the server's identity: a client trusts it blindly or needs
a copy. RocketMQ's servers create one at each start (``tls.test.mode.enable``). This server creates it when
the first TLS client connects, because it needs a library that most processes never load, and keeps it, so
that a client's copy stays valid.
"""

from __future__ import annotations

import datetime
import ipaddress
import logging
import os
import socket
import threading
from pathlib import Path

from kerolox.errors import KeroloxError

log = logging.getLogger(__name__)

NAME = "tls-self-signed.pem"  # key and certificate in one file, so that neither exists without the other
VALID_DAYS = 3650

_making = threading.Lock()  # the listeners of a server share the file


class CannotMake(KeroloxError):
    """The certificate could not be created or stored."""


def self_signed(path: str) -> str:
    """Return the path of a PEM file with key and certificate; create it if it does not exist. Blocking: run
    it in a thread."""
    target = Path(path)
    with _making:
        if not target.exists():
            try:
                _keep(target, _make())
            except OSError as error:
                raise CannotMake(f"cannot store a self-signed certificate in {path}: {error}") from error
            log.warning(
                "tls_self_signed_made path=%s next='it does not prove the server's identity: set "
                "tls.server.certPath and tls.server.keyPath'",
                path,
            )
    return path


def _make() -> bytes:
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        raise CannotMake(
            f"a self-signed certificate needs the package cryptography ({error}): install it, or set "
            "tls.server.certPath and tls.server.keyPath"
        ) from error
    key = ec.generate_private_key(ec.SECP256R1())
    host = socket.gethostname()
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "kerolox, self-signed")])
    names: list[x509.GeneralName] = [x509.DNSName("localhost")]
    if host.isascii() and host != "localhost":
        names.append(x509.DNSName(host))
    names.append(x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))  # for clocks that are behind
        .not_valid_after(now + datetime.timedelta(days=VALID_DAYS))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return secret + certificate.public_bytes(serialization.Encoding.PEM)


def _keep(target: Path, content: bytes) -> None:
    """Write the file completely or not at all, and readable only by its owner from the first byte."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
