"""The Flower project of a federation. It has no code: its apps are those of the fedsat that is installed on the server
and on each node. Its configuration is that of the run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PROJECT = """[project]
name = "fedsat-federation"
version = "1.0.0"
description = "A run of fedsat"
license = "Apache-2.0"
dependencies = ["fedsat[flower]"]

[tool.flwr.app]
publisher = "fedsat"

[tool.flwr.app.components]
serverapp = "fedsat.flower:server_app"
clientapp = "fedsat.flower:client_app"

[tool.flwr.app.config]
"""


def write_project(folder: Path, run_config: Mapping[str, Any]) -> None:
    """Write a project that `flwr run` can submit."""
    folder.mkdir(exist_ok=True)
    (folder / "pyproject.toml").write_text("\n".join([PROJECT, *toml_lines(run_config), ""]))


def toml_lines(table: Mapping[str, Any], equals: str = " = ") -> list[str]:
    """Return lines of TOML; strings, numbers and booleans are written as in JSON."""
    return [f"{key}{equals}{json.dumps(value, ensure_ascii=False)}" for key, value in table.items()]
