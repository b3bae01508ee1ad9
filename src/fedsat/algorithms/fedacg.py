"""FedACG (Kim et al. 2024): clients start ahead of the global model, along its momentum, and stay close to that point.

    Φ = Θ + λ m                                    the model that the server sends
    θ ← θ − η (∇L + β (θ − Φ))                     local steps from Φ
    m ← λ m + Δ̄,  Θ ← Θ + m                        where Δ̄ is the mean of θ_k − Φ

Here the global model is Φ, the model that is sent. It moves by Δ̄ + λ m, so that without the proximal term (β = 0) the
method equals FedAvgM with Nesterov momentum. Θ is reported besides it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from fedsat.algorithms.base import Algorithm, Model, Server, Task, Updates, algorithms
from fedsat.algorithms.weighting import Uniform, Weighting, weightings
from fedsat.options import Option
from fedsat.tree import State, Tree, add, tree_map, zeros_like


@algorithms.register("fedacg")
@dataclass(frozen=True)
class FedACG(Algorithm):
    """Clients start ahead of the global model, along its momentum, and stay close to that point (Kim et al. 2024)."""

    weighting: Annotated[Weighting, Option("weight of a client", among=weightings)] = Uniform()
    momentum: Annotated[float, Option("λ, decay of the momentum and length of the lookahead", at_least=0, below=1)] = (
        0.85
    )
    beta: Annotated[float, Option("β, strength of the proximal term", at_least=0)] = 0.002

    @property
    def uses_mean_only(self) -> bool:
        """True: the server computes m from the mean."""
        return True

    def initial_memory(self, model: Model) -> State:
        """Return m = 0."""
        return {"momentum": zeros_like(model.params)}

    def pull(self, task: Task, carry: State, params: Tree) -> Tree:
        """Return β (θ − Φ), the gradient of the proximal term."""
        del carry
        return tree_map(lambda y, x: self.beta * (y - x), params, task.start.params)

    def aggregate(self, server: Server, updates: Updates, weights: Tensor) -> Server:
        """Update m ← λ m + Δ̄, then Φ ← Φ + η_g (Δ̄ + λ m)."""
        update = self.update(server.model, updates, weights)
        momentum = tree_map(lambda m, d: self.momentum * m + d, server.memory["momentum"], update)
        ahead = tree_map(lambda m, d: d + self.momentum * m, momentum, update)
        return Server(self.advance(server.model, ahead, updates, weights), {"momentum": momentum})

    def reported_models(self, server: Server) -> dict[str, Model]:
        """Return Θ = Φ − η_g λ m, which the authors evaluate."""
        params = add(server.model.params, server.memory["momentum"], -self.server_lr * self.momentum)
        return {"without-lookahead": Model(params, server.model.buffers)}
