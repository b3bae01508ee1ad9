"""Fedsat uses only the public API of Flower, with two exceptions."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

import fedsat

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedsat[flower]'")

PUBLIC = {"flwr.app", "flwr.clientapp", "flwr.serverapp"}
KNOWN = {
    ("flwr.supernode.fleet_http_client", "FleetHttpClient"),
    ("flwr.supercore.inflatable", "inflatable_utils"),
}
"""What a node needs to ask again to be let in (`flower/admission.py`), and to ask again for parts of messages
(`flower/pulls.py`); Flower has no settings for them. The extra `flower` therefore has an upper bound on its version."""


def flower_imports(path: Path) -> set[tuple[str, str]]:
    """Return the module and name of every import from Flower; the name is empty for `import flwr.x`."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "flwr":
            found |= {(str(node.module), alias.name) for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {(alias.name, "") for alias in node.names if alias.name.startswith("flwr.")}
    return found


def test_imports_are_public() -> None:
    files = Path(fedsat.__file__).parent.rglob("*.py")
    imports = set().union(*map(flower_imports, files))
    assert ("flwr.app", "Message") in imports
    private = {(module, name) for module, name in imports if module not in PUBLIC}
    private |= {
        (module, name) for module, name in imports - private if name not in importlib.import_module(module).__all__
    }
    assert private == KNOWN
