"""One round of secure aggregation with double masks, after Bonawitz et al. (CCS 2017), on the graph of Bell et al. (CCS
2020).

    client   introduce            two public keys for this round, signed          -> Introduction
    client   share                shares of its two secrets, encrypted for peers  -> ciphertexts
    client   mask                 vector + own mask + masks shared with peers     -> masked vector
    client   reveal               for each peer a share of one of its secrets     -> shares
    server   total                the sum of the vectors of those that sent one

Client i has a seed b_i of its own mask, and a key s_i from which it derives a mask with each peer. In the sum over all
clients, the masks of pairs cancel. If j has dropped out, its peers' shares give s_j, and with it the masks that do not
cancel. For all others, they give b_i. A client reveals shares of only one secret of each peer, and only if at least
the threshold number of clients sent their vectors. The threshold is above two thirds, so two groups that each
reconstruct one of a peer's secrets have a third of the clients in common, who would have to collude with the server.

`context` names the run and the round. Clients with identities sign their keys together with it, so that the server
cannot replace them by keys of its own. `bound` is a digest of everything that clients were asked to compute. It enters
the masks of pairs, so these cancel only between clients that were asked to compute the same. A server that sends a
different model to one client (Pasquini, Francati and Ateniese, CCS 2022) gets random numbers.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedsat.errors import FedsatError
from fedsat.secure.fixed import Words
from fedsat.secure.shares import FEWEST, PEERS, SIZE, join, split, threshold_of

KEY = 32
"""Bytes of a key and of a seed."""


class SecureError(FedsatError):
    """The round cannot continue, or would reveal more than the sum."""


def public_identity(identity: bytes) -> bytes:
    """Return the public key of an identity, a private Ed25519 key, by which other clients recognise its owner."""
    return Ed25519PrivateKey.from_private_bytes(identity).public_key().public_bytes_raw()


@dataclass(frozen=True)
class Introduction:
    """A client's public keys for one round, and a commitment to its seed."""

    mask_key: bytes
    """X25519, for the masks that it shares with its peers."""
    cipher_key: bytes
    """X25519, for the encryption of shares."""
    seed_hash: bytes
    signature: bytes = b""

    def signed(self, client: int, context: bytes) -> bytes:
        """Return the content that is signed."""
        return b"\0".join([b"fedsat introduction", context, str(client).encode()]) + b"\0" + self.content

    @property
    def content(self) -> bytes:
        """The keys and the commitment."""
        return self.mask_key + self.cipher_key + self.seed_hash


@dataclass
class Party:
    """A client in one round. Its secrets never leave it, except as shares."""

    client: int
    context: bytes
    mask_secret: bytes = field(default_factory=lambda: X25519PrivateKey.generate().private_bytes_raw(), repr=False)
    cipher_secret: bytes = field(default_factory=lambda: X25519PrivateKey.generate().private_bytes_raw(), repr=False)
    seed: bytes = field(default_factory=lambda: os.urandom(KEY), repr=False)
    peers: dict[int, Introduction] = field(default_factory=dict)
    """All clients with whom it shares secrets, itself included."""
    inbox: dict[int, bytes] = field(default_factory=dict)
    """The encrypted shares of the peers with which it masked its vector."""
    revealed: bool = False

    def introduce(self, identity: bytes | None = None) -> Introduction:
        """Return the public keys, signed if the client has an identity."""
        mine = Introduction(_public(self.mask_secret), _public(self.cipher_secret), _hash(self.seed))
        if identity is None:
            return mine
        signature = Ed25519PrivateKey.from_private_bytes(identity).sign(mine.signed(self.client, self.context))
        return Introduction(mine.mask_key, mine.cipher_key, mine.seed_hash, signature)

    def share(self, peers: Mapping[int, Introduction], known: Mapping[int, bytes] | None = None) -> dict[int, bytes]:
        """Return the shares of both secrets, encrypted for each peer.

        `known` are the public identities of the clients; a peer that cannot prove its own is refused.
        """
        own = peers.get(self.client)
        if self.peers or own is None or own.content != self.introduce().content:
            raise SecureError("secure aggregation: the keys are not those of this client and round")
        for client, peer in peers.items():
            if known is not None:
                _verify(client, peer, known, self.context)
        if len(peers) < FEWEST:
            raise SecureError("secure aggregation: fewer than three clients take part, so a sum would reveal too much")
        self.peers = dict(peers)
        threshold = threshold_of(len(peers))
        seeds, keys = (split(secret, peers, threshold) for secret in (self.seed, self.mask_secret))
        return {
            client: self._cipher(client, self.client, client).encrypt(bytes(12), seeds[client] + keys[client], b"")
            for client in peers
        }

    def mask(self, vector: Words, inbox: Mapping[int, bytes], bound: bytes) -> Words:
        """Return the masked vector; `inbox` are the ciphertexts of all peers that sent theirs."""
        if not self.peers or self.inbox:
            raise SecureError("secure aggregation: a vector can be masked only once, after secrets are shared")
        if not inbox.keys() <= self.peers.keys() or len(inbox) < threshold_of(len(self.peers)):
            raise SecureError(f"secure aggregation: {len(inbox)} of {len(self.peers)} clients shared their secrets")
        for client in inbox:
            self._opened(client, inbox[client])
        self.inbox = dict(inbox)
        total = vector + stream(self.seed, b"own" + self.context, len(vector))
        others = {client: self.peers[client] for client in inbox if client != self.client}
        return total + pair_masks(self.client, self.mask_secret, others, self.context + bound, len(vector))

    def reveal(self, survivors: Iterable[int]) -> dict[int, bytes]:
        """Return a share for each peer: of its seed if it survived, otherwise of its key; only once in a round."""
        left = set(survivors)
        if self.revealed or not self.inbox:
            raise SecureError("secure aggregation: shares can be revealed only once, after the vector is sent")
        if not left <= self.inbox.keys() or len(left) < threshold_of(len(self.peers)):
            raise SecureError(
                f"secure aggregation: only {len(left)} of {len(self.peers)} clients sent their vectors, "
                f"{threshold_of(len(self.peers))} are needed"
            )
        self.revealed = True
        opened = {client: self._opened(client, sealed) for client, sealed in self.inbox.items()}
        return {client: both[:SIZE] if client in left else both[SIZE:] for client, both in opened.items()}

    def _opened(self, client: int, sealed: bytes) -> bytes:
        try:
            return self._cipher(client, client, self.client).decrypt(bytes(12), sealed, b"")
        except InvalidTag:
            raise SecureError(f"secure aggregation: the shares of client {client} were changed") from None

    def _cipher(self, peer: int, sender: int, receiver: int) -> ChaCha20Poly1305:
        """Return the cipher of one direction with a peer. Its key encrypts a single message, so the nonce is fixed."""
        shared = _agree(self.cipher_secret, self.peers[peer].cipher_key)
        return ChaCha20Poly1305(_derive(shared, b"shares" + self.context + f"\0{sender}>{receiver}".encode()))


@dataclass
class Round:
    """The server's part of one round: it passes messages on, and computes the sum."""

    introductions: Mapping[int, Introduction]
    context: bytes
    bound: bytes
    peers: dict[int, list[int]] = field(init=False)
    """Each client's peers, itself included."""

    def __post_init__(self) -> None:
        order = secrets.SystemRandom().sample(sorted(self.introductions), len(self.introductions))
        self.peers = graph(order)

    def total(
        self, vectors: Mapping[int, Words], sharers: Iterable[int], shares: Mapping[int, Mapping[int, bytes]]
    ) -> Words:
        """Return the sum of the vectors without masks.

        `sharers` are the clients that sent shares of their secrets, and `shares` what each survivor revealed, by owner.
        """
        shared, size = set(sharers), len(next(iter(vectors.values())))
        total = np.zeros(size, dtype=np.uint64)
        for vector in vectors.values():
            total = total + vector
        for client in shared:
            held = {holder: given[client] for holder, given in shares.items() if client in given}
            needed = threshold_of(len(self.peers[client]))
            if len(held) < needed:
                raise SecureError(
                    f"secure aggregation: {len(held)} clients revealed shares of client {client}, {needed} are needed"
                )
            secret = self._secret(client, held, needed, survived=client in vectors)
            if client in vectors:
                total = total - stream(secret, b"own" + self.context, size)
            else:
                others = {peer: self.introductions[peer] for peer in self.peers[client] if peer in vectors}
                total = total + pair_masks(client, secret, others, self.context + self.bound, size)
        return total

    def _secret(self, client: int, held: Mapping[int, bytes], needed: int, *, survived: bool) -> bytes:
        """Return the seed of a survivor or the key of another client, if it is the one that it introduced.

        Some shares may be wrong, so it tries `needed` of them in a row, from every place in the order of the holders.
        If there are more than needed, this avoids every single wrong share.
        """
        introduced, holders = self.introductions[client], sorted(held)
        for first in range(len(holders) if len(holders) > needed else 1):
            chosen = (holders[first:] + holders[:first])[:needed]
            try:
                secret = join({holder: held[holder] for holder in chosen}, KEY)
            except ValueError:
                continue
            if _hash(secret) == introduced.seed_hash if survived else _public(secret) == introduced.mask_key:
                return secret
        raise SecureError(f"secure aggregation: the shares of client {client} are wrong")


def graph(clients: list[int]) -> dict[int, list[int]]:
    """Return each client's peers, itself included: all clients, or the `PEERS` next ones in a circle."""
    count = len(clients)
    if count <= PEERS + 1:
        return {client: list(clients) for client in clients}
    reach = range(-(PEERS // 2), PEERS // 2 + 1)
    return {client: [clients[(place + step) % count] for step in reach] for place, client in enumerate(clients)}


def pair_masks(client: int, mask_secret: bytes, others: Mapping[int, Introduction], purpose: bytes, size: int) -> Words:
    """Return the sum of a client's masks with others: one of each pair adds the mask, the other subtracts it."""
    total = np.zeros(size, dtype=np.uint64)
    for other, introduction in others.items():
        mask = stream(_agree(mask_secret, introduction.mask_key), b"pair" + purpose, size)
        total = total + mask if client < other else total - mask
    return total


def stream(secret: bytes, purpose: bytes, size: int) -> Words:
    """Return `size` random words of 64 bits from a secret (ChaCha20)."""
    cipher = Cipher(algorithms.ChaCha20(_derive(secret, purpose), bytes(16)), mode=None)
    return np.frombuffer(cipher.encryptor().update(bytes(8 * size)), dtype="<u8").astype(np.uint64)


def _verify(client: int, peer: Introduction, known: Mapping[int, bytes], context: bytes) -> None:
    if client not in known:
        raise SecureError(f"secure aggregation: client {client} is not among the known members")
    try:
        Ed25519PublicKey.from_public_bytes(known[client]).verify(peer.signature, peer.signed(client, context))
    except (InvalidSignature, ValueError):
        raise SecureError(f"secure aggregation: the keys of client {client} are not signed by it") from None


def _public(secret: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def _agree(secret: bytes, public: bytes) -> bytes:
    try:
        return X25519PrivateKey.from_private_bytes(secret).exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise SecureError("secure aggregation: a public key is invalid") from None


def _derive(secret: bytes, purpose: bytes) -> bytes:
    return HKDF(SHA256(), KEY, salt=None, info=b"fedsat " + purpose).derive(secret)


def _hash(secret: bytes) -> bytes:
    return hashlib.sha256(b"fedsat seed" + secret).digest()
