"""Shamir's secret sharing: any `threshold` shares give the secret, fewer reveal nothing about it (Shamir 1979)."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping

PRIME = 2**521 - 1
"""The field, larger than any secret of 64 bytes."""

SIZE = 66
"""Bytes of a share."""

PEERS = 100
"""With more clients, each shares its secrets with this many: 3 % of 10,000 clients suffice (Bell et al. 2020)."""

FEWEST = 3
"""With fewer clients, a sum would reveal too much about each of them."""


def threshold_of(clients: int) -> int:
    """Return how many of a group must take part to the end: more than two thirds of it."""
    return 2 * clients // 3 + 1


def split(secret: bytes, holders: Iterable[int], threshold: int) -> dict[int, bytes]:
    """Return a share for each holder: the value of a random polynomial f with f(0) = secret at the holder's point.

    Holders are different numbers from 0; the point of holder i is i + 1.
    """
    coefficients = [int.from_bytes(secret, "big"), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    shares = {}
    for holder in holders:
        value = 0
        for coefficient in reversed(coefficients):
            value = (value * (holder + 1) + coefficient) % PRIME
        shares[holder] = value.to_bytes(SIZE, "big")
    return shares


def join(shares: Mapping[int, bytes], size: int) -> bytes:
    """Return the secret of `size` bytes: f(0) by Lagrange's formula. Raise an error if there is no such secret."""
    total = 0
    for holder, share in shares.items():
        above, below = 1, 1
        for other in shares:
            if other != holder:
                above, below = above * (other + 1) % PRIME, below * (other - holder) % PRIME
        total = (total + int.from_bytes(share, "big") * above * pow(below, -1, PRIME)) % PRIME
    if total >= 1 << 8 * size:
        raise ValueError("the shares do not belong to one secret")
    return total.to_bytes(size, "big")
