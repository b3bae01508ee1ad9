"""The Flower project of a federation: its apps are fedsat's, and its configuration is that of the run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

APP = '''"""Fedsat's apps for a Flower project."""

from fedsat.flower import client_app, server_app

__all__ = ["client_app", "server_app"]
'''

PROJECT = """[project]
name = "fedsat-federation"
version = "1.0.0"
description = "A run of fedsat"
license = "Apache-2.0"
dependencies = ["fedsat[flower]"]

[tool.flwr.app]
publisher = "fedsat"

[tool.flwr.app.components]
serverapp = "federation_app:server_app"
clientapp = "federation_app:client_app"

[tool.flwr.app.config]
"""


def write_project(folder: Path, run_config: Mapping[str, Any]) -> None:
    """Write a project that `flwr run` can submit."""
    folder.mkdir(exist_ok=True)
    (folder / "federation_app.py").write_text(APP)
    (folder / "pyproject.toml").write_text("\n".join([PROJECT, *toml_lines(run_config), ""]))


def toml_lines(table: Mapping[str, Any], equals: str = " = ") -> list[str]:
    """Return lines of TOML; strings, numbers and booleans are written as in JSON."""
    return [f"{key}{equals}{json.dumps(value, ensure_ascii=False)}" for key, value in table.items()]
