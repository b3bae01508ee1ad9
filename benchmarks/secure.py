"""What secure aggregation costs: the table in docs/measurements/privacy.md.

    OMP_NUM_THREADS=1 python benchmarks/secure.py

One round of the protocol in this process, for 15 clients with and without two that drop out after sharing their keys.
Times are of one client in all its steps, and of the server. Bytes are those of one client.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import torch

from fedsat.algorithms import Model
from fedsat.engine.network import initial_weights
from fedsat.models import build_model
from fedsat.rounds.secure import keys_down, keys_up, length, model_of, vector
from fedsat.secure.protocol import Party, Round
from fedsat.tree import tree_map

MODELS = {"mlp": (1, 28, 28), "lenet5": (1, 28, 28), "resnet8": (3, 32, 32)}
CLIENTS, CONTEXT, BOUND = 15, b"benchmark", b"model"
T = TypeVar("T")


class Watch:
    """Adds up seconds."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self, call: Callable[[], T]) -> T:
        """Return the result of a call, and add its time."""
        began = time.perf_counter()
        result = call()
        self.seconds += time.perf_counter() - began
        return result


def main() -> None:
    """Print one row per model and number of dropouts."""
    print(
        "| model | values | dropouts | client, ms | server, ms | plain up, MB | up, MB | keys up + down, kB | error |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for name, shape in MODELS.items():
        start = initial_weights(build_model(name, shape, 10, 0), torch.device("cpu"), torch.float32)
        for dropouts in (0, 2):
            print(row(name, start, dropouts), flush=True)


def row(name: str, start: Model, dropouts: int) -> str:
    """Run the protocol and return a row of the table."""
    values, clients, server = length([start.params, start.buffers]), Watch(), Watch()
    models = [
        Model(tree_map(lambda tensor: tensor + 0.01 * torch.randn_like(tensor), start.params), start.buffers)
        for _ in range(CLIENTS)
    ]
    parties = {client: Party(client, CONTEXT) for client in range(CLIENTS)}
    introductions = {client: clients(party.introduce) for client, party in parties.items()}
    round_ = server(lambda: Round(introductions, CONTEXT, BOUND))
    sealed = {client: clients(lambda party=party: party.share(introductions)) for client, party in parties.items()}
    masked = {}
    for client, party in list(parties.items())[dropouts:]:
        inbox = {sender: sent[client] for sender, sent in sealed.items()}
        masked[client] = clients(
            lambda client=client, party=party, inbox=inbox: party.mask(vector(start, models[client], 1.0), inbox, BOUND)
        )
    shares = {client: clients(lambda client=client: parties[client].reveal(masked)) for client in masked}
    found = server(lambda: model_of(start, round_.total(masked, sealed, shares), float(len(masked))))
    mean = {name: torch.stack([models[k].params[name] for k in masked]).mean(0) for name in start.params}
    error = max(float((found.params[name] - mean[name]).abs().max()) for name in mean)
    keys = (keys_up(CLIENTS) + keys_down(CLIENTS)) / 1e3
    return (
        f"| {name} | {values:,} | {dropouts} | {1e3 * clients.seconds / CLIENTS:.0f} | {1e3 * server.seconds:.0f} "
        f"| {4 * values / 1e6:.2f} | {8 * values / 1e6:.2f} | {keys:.1f} | {np.format_float_scientific(error, 1)} |"
    )


if __name__ == "__main__":
    main()
