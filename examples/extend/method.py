"""A method: FedAvg with momentum in local steps, which every client keeps between its rounds.

fedsat run --algorithm method:LocalMomentum
"""

from dataclasses import dataclass
from typing import Annotated

from fedsat import Algorithm
from fedsat.algorithms import LocalResult, Model, Task
from fedsat.options import Option
from fedsat.tree import State, Tree, add, tree_map, zeros_like


@dataclass(frozen=True)
class LocalMomentum(Algorithm):
    """FedAvg with local momentum, which each client keeps between its rounds."""

    beta: Annotated[float, Option("β, share of the momentum kept in a step", at_least=0, below=1)] = 0.9

    def initial_client_state(self, model: Model) -> State:
        """Return v_k = 0."""
        return {"momentum": zeros_like(model.params)}

    def begin(self, task: Task) -> State:
        """Continue with the momentum of the client's last round."""
        return {"momentum": task.state["momentum"]}

    def step(self, task: Task, carry: State, params: Tree, grads: Tree) -> tuple[Tree, State]:
        """Take the step v ← β v + ∇L, θ ← θ − η v."""
        momentum = tree_map(lambda v, g: self.beta * v + g, carry["momentum"], grads)
        return add(params, momentum, -task.lr), {"momentum": momentum}

    def end(self, task: Task, carry: State, result: LocalResult) -> tuple[State, State]:
        """Keep the momentum; upload nothing besides the model."""
        return {"momentum": carry["momentum"]}, {}
