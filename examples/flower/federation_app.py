"""Fedsat's apps, as Flower finds them. A network or method of your own (`mymodule:Net`) goes beside this file."""

from fedsat.flower import client_app, server_app

__all__ = ["client_app", "server_app"]
