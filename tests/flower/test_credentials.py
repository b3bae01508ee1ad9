"""`fedsat keys` writes a folder for each machine, and no private key is where it should not be."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedsat[flower]'")

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from fedsat.cli import main


def create(*arguments: str) -> int | str | None:
    with pytest.raises(SystemExit) as ended:
        main(["keys", *arguments])
    return ended.value.code


def test_each_machine_gets_its_folder(tmp_path: Path) -> None:
    assert create(str(tmp_path), "--nodes", "2", "--host", "fl.example.org,10.0.0.1", "--days", "30") == 0
    files = {folder.name: sorted(file.name for file in folder.iterdir()) for folder in tmp_path.iterdir()}
    node = ["ca.crt", "node", "node.pub"]
    server = ["ca.crt", "node-0.pub", "node-1.pub", "server.crt", "server.key"]
    assert files == {"server": server, "node-0": node, "node-1": node}
    for secret in (tmp_path / "server" / "server.key", tmp_path / "node-0" / "node"):
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    key = serialization.load_ssh_private_key((tmp_path / "node-1" / "node").read_bytes(), None)
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    assert (tmp_path / "server" / "node-1.pub").read_bytes() == public
    ca, certificate = (
        x509.load_pem_x509_certificate((tmp_path / "server" / name).read_bytes()) for name in ("ca.crt", "server.crt")
    )
    certificate.verify_directly_issued_by(ca)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fl.example.org", "localhost"]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.1", "127.0.0.1"]
    assert (certificate.not_valid_after_utc - certificate.not_valid_before_utc).days == 30


def test_keys_are_not_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert create(str(tmp_path)) == 0
    before = (tmp_path / "server" / "server.key").read_bytes()
    assert create(str(tmp_path), "--nodes", "1") == 2
    assert "keys are not replaced" in capsys.readouterr().err
    assert (tmp_path / "server" / "server.key").read_bytes() == before
    assert not (tmp_path / "node-0").exists()


@pytest.mark.parametrize("host", ["server:9092", "https://server", "", "a b", "ö.example"])
def test_hosts_are_names_or_addresses(host: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert create(str(tmp_path / "keys"), "--host", host) == 2
    assert "is not the name or address of a machine" in capsys.readouterr().err
    assert not (tmp_path / "keys").exists()
