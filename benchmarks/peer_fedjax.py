"""FedAvg in FedJAX's simulation, compiled by XLA, which uses all cores; no evaluation except ours.

Started by `peers.py`. The models are the package's own, written in JAX, and begin with the same weights.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import fedjax
import jax
import numpy as np
import torch
from fedjax.algorithms import fed_avg
from jax import lax, nn
from jax import numpy as jnp
from local import BATCH_SIZE, CLIENTS, EPOCHS, LR, Work
from turns import Turns

jax.tree_map = jax.tree.map  # FedJAX uses the old name, which JAX has removed

Params = dict[str, Any]


def linear(params: Params, name: str, x: jax.Array) -> jax.Array:
    """Apply the layer of this name."""
    return x @ params[f"{name}.weight"].T + params[f"{name}.bias"]


def mlp(params: Params, x: jax.Array) -> jax.Array:
    """Return the logits of `fedsat.models.MLP`."""
    x = nn.elu(linear(params, "hidden.0", x.reshape(len(x), -1)))
    return linear(params, "classifier", nn.elu(linear(params, "hidden.2", x)))


def lenet5(params: Params, x: jax.Array) -> jax.Array:
    """Return the logits of `fedsat.models.LeNet5`."""
    for name, padding in (("features.0", 2), ("features.3", 0)):
        x = lax.conv_general_dilated(x, params[f"{name}.weight"], (1, 1), [(padding, padding)] * 2)
        x = jnp.tanh(x + params[f"{name}.bias"][:, None, None])
        x = lax.reduce_window(x, 0.0, lax.add, (1, 1, 2, 2), (1, 1, 2, 2), "VALID") / 4
    x = jnp.tanh(linear(params, "hidden.0", x.reshape(len(x), -1)))
    return linear(params, "classifier", jnp.tanh(linear(params, "hidden.2", x)))


NETWORKS: dict[str, Callable[[Params, jax.Array], jax.Array]] = {"mlp": mlp, "lenet5": lenet5}


def main() -> None:
    """Run rounds until no more are requested."""
    work = Work.load(Path(sys.argv[1]))
    network, module = NETWORKS[work.model["name"]], work.new_model()

    def loss(params: Params, batch: dict[str, jax.Array], _: jax.Array) -> jax.Array:
        scores = nn.log_softmax(network(params, batch["x"]))
        return -jnp.take_along_axis(scores, batch["y"][:, None], 1).mean()

    algorithm = fed_avg.federated_averaging(
        jax.grad(loss),
        fedjax.optimizers.sgd(LR),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=BATCH_SIZE, num_epochs=EPOCHS),
    )
    held = [[part.numpy() for part in work.samples(client)] for client in range(CLIENTS)]
    data = [fedjax.ClientDataset({"x": x, "y": y.astype(np.int32)}) for x, y in held]
    state = algorithm.init({name: jnp.asarray(tensor.numpy()) for name, tensor in module.state_dict().items()})
    draw, keys, turns = np.random.default_rng(0), jax.random.PRNGKey(0), Turns(f"FedJAX {version('fedjax')}")
    with suppress(EOFError):
        while True:
            turns.wait()
            keys, *own = jax.random.split(keys, work.per_round + 1)
            sampled = draw.choice(CLIENTS, work.per_round, replace=False).tolist()
            state, _ = algorithm.apply(
                state, [(client, data[client], key) for client, key in zip(sampled, own, strict=True)]
            )
            jax.block_until_ready(state.params)
            turns.done()
            module.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in state.params.items()})
            turns.report(work.test_loss(module))


if __name__ == "__main__":
    main()
