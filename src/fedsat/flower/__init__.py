"""Real nodes, with Flower: `server_app` and `client_app` for any Flower project.

# server_app.py of a Flower project
from fedsat.flower import server_app as app
"""

from __future__ import annotations

from fedsat.errors import FedsatError

try:
    import flwr  # noqa: F401
except ImportError as error:
    raise FedsatError("real nodes need Flower: pip install 'fedsat[flower]'") from error

from fedsat.flower.client import app as client_app
from fedsat.flower.server import app as server_app
from fedsat.flower.terms import Terms

__all__ = ["Terms", "client_app", "server_app"]
