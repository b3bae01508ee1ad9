"""A node's part of secure aggregation: it answers in the order of the protocol, and once in each round."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from flwr.app import Context, RecordDict

from fedsat.algorithms import Model
from fedsat.errors import UsageError
from fedsat.experiment.config import Config
from fedsat.flower.agreement import Agreement, AgreementError
from fedsat.flower.checks import RefusedError
from fedsat.flower.memory import Memory
from fedsat.flower.messages import Train
from fedsat.flower.node_data import NodeConfig
from fedsat.flower.records import packed_bytes, unpacked_bytes
from fedsat.flower.secure_messages import (
    Introduce,
    Introduced,
    Reveal,
    Revealed,
    Share,
    Shared,
    bound_of,
    introduction,
    written,
)
from fedsat.metrics import ClassCounts
from fedsat.rounds.secure import vector, with_scale
from fedsat.secure.protocol import Party
from fedsat.tree import Tree

SECRETS = ("context", "mask_secret", "cipher_secret", "seed")


def introduce(content: RecordDict, context: Context) -> Introduced:
    """Return keys for a round."""
    request = Introduce.unpack(content)
    if not Config.of(request.run.settings).secure_aggregation:
        raise AgreementError("keys are for runs with secure aggregation")
    party = Party(request.client, request.context)
    with Memory.of(context, request.run.id) as memory:
        memory.party = party_text(party)
        with memory.account() as account:
            return Introduced(party.introduce(identity_of(context.node_config)), account.masked)


def share(content: RecordDict, context: Context) -> Shared:
    """Share this round's secrets with the peers; only with known members if the agreement names them."""
    request = Share.unpack(content)
    agreement = Agreement.of_node(context.node_config)
    agreement.check_peers(len(request.peers))
    with Memory.of(context, request.run.id) as memory:
        party = party_of(memory)
        sealed = party.share(request.peers, members_of(agreement) if agreement.members else None)
        memory.party = party_text(party)
    return Shared(sealed)


def masked(
    request: Train, start: Model, trained: Model, samples: int, memory: Memory, counts: ClassCounts | None
) -> Tree:
    """Return the masked update of the trained model; the node never sends another one for this round.

    With `counts`, the node's own evaluation of its model, its scale is computed from them, and sent under masks too.
    """
    config = Config.of(request.run.settings)
    with memory.account() as account:
        if request.round <= account.masked:
            raise AgreementError(
                f"it has sent an update of round {account.masked}; a second sum could reveal the difference"
            )
    weighting, counted = config.algorithm.weighting, min(samples, request.run.most_samples or samples)
    if counts is None:
        found = weighting.scale(torch.tensor([float(counted)], dtype=torch.float64), request.run.mean_samples)
    else:
        found = weighting.own_scale(counts)
    if found is None:
        raise RefusedError("the weighting gives a client no scale of its own")
    party, scale = party_of(memory), float(found)
    scaled = vector(start, trained, scale)
    words = party.mask(scaled if counts is None else with_scale(scaled, scale), request.inbox, bound_of(request))
    with memory.account() as account:
        account.masked = request.round
    memory.party = party_text(party)
    return {"words": torch.from_numpy(words.view("int64"))}


def reveal(content: RecordDict, context: Context) -> Revealed:
    """Reveal a share of one secret of each peer, and forget all secrets of the round.

    The sum that the shares make readable may cover fewer clients than exchanged keys, so they are counted again.
    """
    request = Reveal.unpack(content)
    Agreement.of_node(context.node_config).check_peers(len(set(request.survivors)))
    with Memory.of(context, request.run.id) as memory:
        shares = party_of(memory).reveal(request.survivors)
        memory.party = ""
    return Revealed(shares)


def refuse_count(config: Config) -> None:
    """Refuse to evaluate the node's own model for the server, which would reveal what the masks hide."""
    if config.secure_aggregation:
        raise AgreementError("count is true, but the run has secure aggregation")


def identity_of(node: NodeConfig) -> bytes | None:
    """Return the private key that the node's configuration names: Ed25519, as `ssh-keygen -t ed25519` writes it."""
    if "identity" not in node:
        return None
    path = Path(str(node["identity"])).expanduser()
    try:
        key = load_ssh_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read the identity {path}: {error}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise UsageError(f"the identity {path} is not an Ed25519 key; make one with: ssh-keygen -t ed25519")
    return key.private_bytes_raw()


def members_of(agreement: Agreement) -> Mapping[int, bytes]:
    """Return the public keys of the members of the federation, by client."""
    known = {}
    for client, line in enumerate(agreement.members):
        try:
            key = load_ssh_public_key(line.encode())
        except ValueError as error:
            raise UsageError(f"member {client} of the agreement has no readable public key: {error}") from error
        if not isinstance(key, Ed25519PublicKey):
            raise UsageError(f"the key of member {client} in the agreement does not begin with ssh-ed25519")
        known[client] = key.public_bytes_raw()
    return known


def party_of(memory: Memory) -> Party:
    """Return the node's secrets of the current round."""
    if not memory.party:
        raise RefusedError(
            "the node has no secrets of this round; it has not introduced itself, or has revealed its shares"
        )
    table = json.loads(memory.party)
    context, mask_secret, cipher_secret, seed = (bytes.fromhex(table[name]) for name in SECRETS)
    peers = {int(client): introduction(text) for client, text in table["peers"].items()}
    return Party(table["client"], context, mask_secret, cipher_secret, seed, peers, unpacked_bytes(table["inbox"]))


def party_text(party: Party) -> str:
    """Return what `party_of` reads."""
    secret = {name: getattr(party, name).hex() for name in SECRETS}
    peers = {client: written(peer) for client, peer in party.peers.items()}
    inbox = json.loads(packed_bytes(party.inbox))
    return json.dumps({"client": party.client, **secret, "peers": peers, "inbox": inbox})
