"""Create the certificates and keys of a federation with TLS and node authentication:

    python credentials.py FOLDER [--nodes 4] [--host my.server.org]

ca.crt                the certificate authority (give it to all nodes)
server.crt, .key      the server's certificate and key (keep them on the server)
node-0, node-0.pub …  each node's key pair (the private one goes to its node, the public one stays on the server)

The authority's key is not stored, so nobody can create more certificates with it. In production, use certificates from
your own authority, and let every node create its own key:
ssh-keygen -t ecdsa -b 384 -N "" -f node
"""

from __future__ import annotations

import argparse
import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

HERE = ["127.0.0.1", "localhost"]
"""The SuperLink is reached under these names by the gate, and by you."""

PRIVATE, PLAIN = serialization.Encoding.PEM, serialization.NoEncryption()


def make_credentials(folder: Path, nodes: int, hosts: list[str]) -> None:
    """Write all files into `folder`. The server is known as `hosts`, and on its own machine as localhost."""
    hosts = [*hosts, *HERE]
    folder.mkdir(parents=True, exist_ok=True)
    authority, server = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    authority_name, server_name = _name("fedsat example authority"), _name(hosts[0])
    ca = _certificate(authority_name, authority_name, authority, authority, [], is_authority=True)
    certificate = _certificate(server_name, authority_name, server, authority, hosts, is_authority=False)
    (folder / "ca.crt").write_bytes(ca.public_bytes(PRIVATE))
    (folder / "server.crt").write_bytes(certificate.public_bytes(PRIVATE))
    _write_secret(folder / "server.key", server.private_bytes(PRIVATE, serialization.PrivateFormat.PKCS8, PLAIN))
    for number in range(nodes):
        key = ec.generate_private_key(ec.SECP384R1())
        _write_secret(folder / f"node-{number}", key.private_bytes(PRIVATE, serialization.PrivateFormat.OpenSSH, PLAIN))
        public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        (folder / f"node-{number}.pub").write_bytes(public)


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    signer: ec.EllipticCurvePrivateKey,
    hosts: list[str],
    *,
    is_authority: bool,
) -> x509.Certificate:
    today = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(today)
        .not_valid_after(today + datetime.timedelta(days=365))
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
        return x509.DNSName(host)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _write_secret(path: Path, content: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(content)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--host", action="append", default=[], help="a name or address of the server")
    given = parser.parse_args()
    make_credentials(given.folder, given.nodes, given.host)
    print(f"made in {given.folder}: ca.crt, server.crt, server.key and {given.nodes} node keys")
