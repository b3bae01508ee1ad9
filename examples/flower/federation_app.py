"""Fedsat's apps, which Flower imports. Put your own network or method (`mymodule:Net`) next to this file."""

from fedsat.flower import client_app, server_app

__all__ = ["client_app", "server_app"]
