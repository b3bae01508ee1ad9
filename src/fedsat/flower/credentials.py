"""Certificates and keys of a federation with TLS and node authentication, in one folder for each machine:

    server/   ca.crt, server.crt, server.key, and the public key of each node (node-0.pub, …)
    node-0/   ca.crt, and the node's own key: node (private) and node.pub

The authority's key is not stored, so nobody can create more certificates with it.
"""

from __future__ import annotations

import datetime
import ipaddress
import re
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fedsat.errors import UsageError

HERE = ["127.0.0.1", "localhost"]
"""The SuperLink is reached under these names by the gate, and by you."""

HOST = re.compile(r"[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?(\.[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?)*")

PEM, PLAIN = serialization.Encoding.PEM, serialization.NoEncryption()


def make_credentials(folder: Path, nodes: int = 0, hosts: Sequence[str] = (), days: int = 365) -> None:
    """Write the folders of the server and of `nodes` nodes. Existing keys are never replaced.

    The server is known as `hosts`, and on its own machine as localhost. Certificates are valid for `days`.
    """
    names = list(dict.fromkeys([*hosts, *HERE]))
    for machine in ("server", *(f"node-{number}" for number in range(nodes))):
        if (folder / machine).exists():
            raise UsageError(f"{folder / machine} exists; choose another folder, because keys are not replaced")
    authority, server = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    authority_name, server_name = _name("fedsat authority"), _name("fedsat server")
    ca = _certificate(authority_name, authority_name, authority, authority, [], days, is_authority=True)
    certificate = _certificate(server_name, authority_name, server, authority, names, days, is_authority=False)
    at_server = folder / "server"
    at_server.mkdir(parents=True)
    (at_server / "ca.crt").write_bytes(ca.public_bytes(PEM))
    (at_server / "server.crt").write_bytes(certificate.public_bytes(PEM))
    _write_secret(at_server / "server.key", server.private_bytes(PEM, serialization.PrivateFormat.PKCS8, PLAIN))
    for number in range(nodes):
        at_node = folder / f"node-{number}"
        at_node.mkdir()
        key = ec.generate_private_key(ec.SECP384R1())
        public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        _write_secret(at_node / "node", key.private_bytes(PEM, serialization.PrivateFormat.OpenSSH, PLAIN))
        (at_node / "node.pub").write_bytes(public)
        (at_node / "ca.crt").write_bytes(ca.public_bytes(PEM))
        (at_server / f"node-{number}.pub").write_bytes(public)


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    signer: ec.EllipticCurvePrivateKey,
    hosts: list[str],
    days: int,
    *,
    is_authority: bool,
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    if is_authority:
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)  # signs certificates
        builder = builder.add_extension(usage, critical=True)
    if hosts:
        builder = builder.add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
    return builder.sign(signer, hashes.SHA384())


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        if not HOST.fullmatch(host):
            raise UsageError(f"{host!r} is not the name or address of a machine, such as fl.example.org") from None
        return x509.DNSName(host)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _write_secret(path: Path, content: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(content)
