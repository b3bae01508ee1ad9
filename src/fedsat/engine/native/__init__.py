"""Layers of many clients in C, compiled on the user's machine."""
