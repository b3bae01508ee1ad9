"""The local optimizer: SGD with momentum, weight decay and clipping, as in torch.

    g ← g · min(1, clip / ‖g‖)        clip: the largest norm of a client's gradient, over all parameters
    g ← g + λ θ                       λ: weight decay
    v ← μ v + g,  d = v  (Nesterov: d = g + μ v)        μ: momentum; v = 0 at the start of every round
    θ ← θ − η d

g is the gradient of the batch plus the method's `pull`. So a proximal term, a correction or a dual is clipped and
accumulated together with the gradient, as in FedDyn's code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from fedsat.errors import UsageError
from fedsat.options import Option, check
from fedsat.registry import Registry
from fedsat.tree import State, Tree, add, norms, per_client, tree_map, zeros_like

VELOCITY = "optimizer.velocity"
"""The name of v in the carry of a local round."""


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent with momentum, weight decay and clipping, as in torch."""

    momentum: Annotated[float, Option("μ, local momentum; it starts at 0 in every round", at_least=0, below=1)] = 0.0
    nesterov: Annotated[bool, Option("Nesterov momentum instead of plain momentum")] = False
    weight_decay: Annotated[float, Option("λ, added to the gradient as λ θ", at_least=0)] = 0.0
    clip: Annotated[float, Option("largest norm of a client's gradient in a step; 0: no clipping", at_least=0)] = 0.0

    def __post_init__(self) -> None:
        check(self, "optimizer")
        if self.nesterov and not self.momentum:
            raise UsageError("optimizer.nesterov is true, but optimizer.momentum is 0; set a momentum such as 0.9")

    @property
    def plain(self) -> bool:
        """Whether a step is θ ← θ − η g, so that engines may take it in place."""
        return type(self) is SGD and not (self.momentum or self.weight_decay or self.clip)

    def begin(self, params: Tree) -> State:
        """Return the optimizer's initial carry."""
        return {VELOCITY: zeros_like(params)} if self.momentum else {}

    def gradient(self, params: Tree, grads: Tree) -> Tree:
        """Return the gradient, clipped (as by `torch.nn.utils.clip_grad_norm_`) and with the weight decay."""
        if self.clip:
            share = (self.clip / (norms(grads) + 1e-6)).clamp(max=1)
            grads = tree_map(lambda g: per_client(share, g) * g, grads)
        return add(grads, params, self.weight_decay) if self.weight_decay else grads

    def direction(self, params: Tree, grads: Tree, carry: State) -> tuple[Tree, State]:
        """Return the direction d of a step, and the carry with the new velocity."""
        grads = self.gradient(params, grads)
        if not self.momentum:
            return grads, carry
        velocity = tree_map(lambda v, g: self.momentum * v + g, carry[VELOCITY], grads)
        ahead = add(grads, velocity, self.momentum) if self.nesterov else velocity
        return ahead, {**carry, VELOCITY: velocity}

    def effective_steps(self, steps: Tensor) -> Tensor:
        """Return A_K, such that Θ − θ_k = η A_K · (a weighted mean of the K gradients), for numbers of steps K [C].

        A gradient that is followed by n − 1 further steps moves the model by η (1 − μⁿ)/(1 − μ) times itself (Nesterov:
        1 − μⁿ⁺¹). A_K is the sum of these factors for n = 1 … K, and K itself without momentum.
        """
        if not self.momentum:
            return steps
        mu, lead = self.momentum, self.momentum ** (2 if self.nesterov else 1)
        counts = steps.double()
        return (counts - lead * (1 - mu**counts) / (1 - mu)) / (1 - mu)


optimizers: Registry[SGD] = Registry("optimizer", SGD, "optimizers")
optimizers.register("sgd")(SGD)
