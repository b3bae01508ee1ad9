"""Real nodes, with Flower: `server_app` and `client_app` for any Flower project.

[tool.flwr.app.components]
serverapp = "fedsat.flower:server_app"
clientapp = "fedsat.flower:client_app"
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fedsat.errors import FedsatError

if TYPE_CHECKING:
    from fedsat.flower.client import app as client_app
    from fedsat.flower.server import app as server_app

__all__ = ["client_app", "server_app"]

_APPS = {"client_app": "fedsat.flower.client", "server_app": "fedsat.flower.server"}


def __getattr__(name: str) -> Any:
    """Import an app on first access, so that fedsat works without Flower."""
    if name not in _APPS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require_flower()
    return importlib.import_module(_APPS[name]).app


def require_flower() -> None:
    """Raise an error that says what to install if Flower is missing."""
    try:
        import flwr  # noqa: F401, PLC0415
    except ImportError as error:
        raise FedsatError("Flower is not installed; install it with: pip install 'fedsat[flower]'") from error
