"""Dependencies: everything that is imported is declared, and the lock files have a hash for everything."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
LOCKS = {"deploy/requirements.txt": ["flower"], ".ci/requirements.txt": ["flower", "dev", "docs"]}
"""The lock files, with the extras that each contains."""


def plain(name: str) -> str:
    """Return the name of a distribution as indexes write it, from a requirement."""
    found = re.match(r"[\w.-]+", name)
    assert found is not None
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def requirements(extras: Iterable[str]) -> set[str]:
    """Return the packages that fedsat needs with some extras."""
    return {
        plain(wanted) for wanted in [*PROJECT["dependencies"], *(each for extra in extras for each in EXTRAS[extra])]
    }


def imports(path: Path) -> set[str]:
    """Return the packages that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(str(node.module).partition(".")[0])
    return found


def locked(file: str) -> dict[str, tuple[str, list[str]]]:
    """Return the version and the hashes of each package in a lock file, by its name."""
    entries = re.split(r"\n(?=\S)", (ROOT / file).read_text(encoding="utf-8").strip())
    parts = [re.match(r"([\w.-]+)==(\S+)", entry) for entry in entries]
    assert all(parts)
    return {
        plain(part[1]): (part[2], re.findall(r"--hash=sha256:([0-9a-f]{64})(?!\w)", entry))
        for part, entry in zip(parts, entries, strict=True)
        if part
    }


def test_what_is_imported_is_declared() -> None:
    declared, installed = requirements(EXTRAS), packages_distributions()
    found = set().union(*map(imports, (ROOT / "src").rglob("*.py"))) - sys.stdlib_module_names - {"fedsat"}
    assert {"torch", "cryptography", "flwr"} <= found
    undeclared = {name for name in found if not {plain(dist) for dist in installed.get(name, [name])} & declared}
    assert undeclared <= {"triton"}  # a part of torch's builds for GPUs


def test_flower_is_bounded_above() -> None:
    wanted = [requirement for extra in ("flower", "bench") for requirement in EXTRAS[extra]]
    flower = [requirement for requirement in wanted if plain(requirement) == "flwr"]
    assert len(flower) == 2
    assert all("<" in requirement for requirement in flower)


@pytest.mark.parametrize("file", LOCKS)
def test_a_lock_has_a_hash_for_everything(file: str) -> None:
    packages = locked(file)
    assert all(hashes for _, hashes in packages.values())
    assert requirements(LOCKS[file]) - packages.keys() == {"torch"}
    assert "://" not in (ROOT / file).read_text(encoding="utf-8")


@pytest.mark.parametrize("file", LOCKS)
def test_a_lock_has_the_versions_of_the_constraints(file: str) -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if "==" in line)
    packages = locked(file)
    different = {name: pin for name, pin in pins.items() if packages.get(plain(name), (pin,))[0] != pin}
    assert not different, "run `make lock`"
