"""Secure aggregation: the server learns the sum of what clients send, and nothing else about it."""

from fedsat.secure.fixed import decode, encode
from fedsat.secure.protocol import Introduction, Party, Round, SecureError, public_identity, threshold_of

__all__ = ["Introduction", "Party", "Round", "SecureError", "decode", "encode", "public_identity", "threshold_of"]
