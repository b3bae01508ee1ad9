"""Masked counts: the server can read only their sum over a client's workers.

Each pair of a client's workers shares a secret (X25519) and draws the same mask from it. One worker adds the mask to
its counts and the other subtracts it, modulo 2^64. What a worker sends looks random, but in the sum over all workers
the masks cancel. The server distributes the public keys, so the counts are protected from a server that follows the
protocol, but not from one that distributes its own keys.

Workers must not learn whose models they evaluate, so they never see each other's public keys P. For every pair and
model, the server draws a number r. It sends r·P_j to worker i and r·P_i to worker j, which look like new random keys.
Both compute the secret r·a_i·a_j·G, which the server cannot.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from numpy.typing import NDArray

Counts = NDArray[np.int64]

KEY = re.compile("[0-9a-f]{64}")
"""A public key in hex, as nodes send it."""


def new_secret() -> bytes:
    """Draw a node's secret, which never leaves the node."""
    return X25519PrivateKey.generate().private_bytes_raw()


def public_key(secret: bytes) -> str:
    """Return the public key of a secret, in hex."""
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw().hex()


def usable(key: str) -> bool:
    """Return whether secrets can be agreed with a public key; with some, such as zeros, every secret is the same."""
    if not KEY.fullmatch(key):
        return False
    try:
        X25519PrivateKey.generate().exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(key)))
    except ValueError:
        return False
    return True


def keys_of_a_pair(first: str, second: str) -> tuple[str, str]:
    """Return the one-time keys that two workers get in place of each other's public keys, the first worker's first.

    The arguments are the public keys of the two workers.
    """
    r = X25519PrivateKey.generate()
    mine, yours = (r.exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(key))).hex() for key in (second, first))
    return mine, yours


def masked(counts: Counts, secret: bytes, peers: Mapping[str, int], purpose: str) -> Counts:
    """Mask counts with the keys of the worker's peers for this request, and the signs of the masks.

    `purpose` identifies the request, so that no mask is used twice.
    """
    total = counts.astype(np.int64).view(np.uint64).copy()
    for key, sign in peers.items():
        mask = _mask(secret, key, purpose, counts.shape)
        total = total + mask if sign > 0 else total - mask  # modulo 2^64
    return total.view(np.int64)


def unmasked_sum(reports: Iterable[Counts]) -> Counts:
    """Return the sum of all workers' reports, in which the masks cancel."""
    total = np.add.reduce([report.view(np.uint64) for report in reports])
    return np.asarray(total).view(np.int64)


def _mask(secret: bytes, peer: str, purpose: str, shape: tuple[int, ...]) -> NDArray[np.uint64]:
    shared = X25519PrivateKey.from_private_bytes(secret).exchange(
        X25519PublicKey.from_public_bytes(bytes.fromhex(peer))
    )
    stream = hashlib.shake_256(b"fedsat counts\0" + shared + purpose.encode()).digest(8 * int(np.prod(shape)))
    return np.frombuffer(stream, dtype="<u8").astype(np.uint64).reshape(shape)
