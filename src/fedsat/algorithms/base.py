"""What a federated method is: a few small functions, each with FedAvg's behaviour as its default.

A local round of client k, and the end of a round at the server, in the order the engines call them:

    begin(task)                        -> carry          once, before the first step
    penalty(task, carry, outputs, …)   -> tensor | None  added to the objective's loss of every sample
    pull(task, carry, params)          -> tree | None    added to the gradient, whatever that is
    step(task, carry, params, grads)   -> params, carry  one step of local training
    end(task, carry, result)           -> state, upload  what the client keeps, what it sends besides its model
    aggregate(server, updates, weights) -> server        the next global model and the server's memory

Everything a method knows is handed in and returned; nothing hides in `self`, which holds only
hyper-parameters. Tensors of clients carry the client as first axis (see `fedsat.tree`), one client or many.
`penalty`, `pull` and `step` never branch on a tensor's values, and what `begin` returns and `step` hands on have the
same names and shapes: engines run many clients at once and record these functions as graphs. All but `penalty` are
called without gradients being tracked.
What a sample costs (`Objective`), how much a client weighs (`Weighting`) and how updates become one (`Aggregator`)
are parts of their own, so that each can be put on any method.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Protocol

import torch
from torch import Tensor

from fedsat.algorithms.aggregator import Aggregator, aggregators
from fedsat.algorithms.objective import CrossEntropy, Objective, objectives
from fedsat.algorithms.weighting import BySamples, Weighting, weightings
from fedsat.errors import UsageError
from fedsat.options import Option, Registry, check
from fedsat.tree import State, Tree, add, expand, per_client, tree_map


@dataclass(frozen=True)
class Model:
    """The weights of a network: trainable parameters, and buffers such as BatchNorm's running statistics."""

    params: Tree
    buffers: Tree


@dataclass(frozen=True)
class Server:
    """What the server knows between rounds: the global model Θ and the method's memory."""

    model: Model
    memory: State = field(default_factory=dict)


@dataclass(frozen=True)
class Batch:
    """One batch of every client: inputs [C, B, …], labels [C, B], and which entries are real, not padding."""

    x: Tensor
    y: Tensor
    real: Tensor


@dataclass(frozen=True)
class Outputs:
    """What the network says of a batch: logits [C, B, m], and, where a method asks, the input of its last layer."""

    logits: Tensor
    features: Tensor | None = None


class Network(Protocol):
    """The network as a function of stacked weights, in evaluation mode."""

    def __call__(self, params: Tree, buffers: Tree, x: Tensor) -> Outputs:
        """The outputs for x [C, B, …]; differentiable in `params`, leaves `buffers` alone."""


@dataclass(frozen=True)
class Task:
    """The local round of one or more clients, as a method sees it. C is the number of clients."""

    start: Model
    """Θ_t, the received model (no client axis)."""
    received: State
    """What `broadcast` sent along (no client axis)."""
    state: State
    """What each client kept from its last participation."""
    class_counts: Tensor
    """Samples of each class a client holds, [C, m]."""
    lr: float
    """η, the local learning rate of this round."""
    epochs: int
    """E, the local epochs."""
    network: Network
    examples: Callable[[], Iterator[Batch]]
    """One pass over each client's samples in batches, unshuffled and not augmented."""


@dataclass(frozen=True)
class LocalResult:
    """What local training made of a task: the clients' models θ_k and the steps K_k they took, [C]."""

    params: Tree
    buffers: Tree
    steps: Tensor


@dataclass(frozen=True)
class Updates:
    """What the server received in a round, stacked over the K clients that answered."""

    clients: Tensor
    model: Model
    uploads: State
    sizes: Tensor
    """n_k, samples."""
    steps: Tensor
    """K_k, local steps taken."""
    lr: float
    epochs: int
    population: int
    """N, the clients of the federation, called or not."""


@dataclass(frozen=True)
class Algorithm:
    """A federated method; as it stands, FedAvg."""

    server_lr: Annotated[float, Option("η_g, global learning rate", above=0)] = 1.0
    objective: Annotated[Objective, Option("what a sample costs", among=objectives)] = CrossEntropy()
    weighting: Annotated[Weighting, Option("how much a client weighs", among=weightings)] = BySamples()
    aggregator: Annotated[Aggregator, Option("how updates become one", among=aggregators)] = Aggregator()

    uses_features: ClassVar[bool] = False
    """Whether `penalty` reads `outputs.features`."""

    def __post_init__(self) -> None:
        check(self, "algorithm")

    def initial_memory(self, model: Model) -> State:
        """The server's memory before the first round."""
        del model
        return {}

    def broadcast(self, server: Server) -> State:
        """What goes down to the clients besides the model."""
        del server
        return {}

    def initial_client_state(self, model: Model) -> State:
        """The state of a client that takes part for the first time and received `model` (no client axis)."""
        del model
        return {}

    def begin(self, task: Task) -> State:
        """Prepare a local round: what `penalty` and `step` need at hand."""
        del task
        return {}

    def penalty(self, task: Task, carry: State, outputs: Outputs, batch: Batch) -> Tensor | None:
        """What the method adds to the loss of each sample, [C, B]; None for nothing."""
        del task, carry, outputs, batch
        return None

    def pull(self, task: Task, carry: State, params: Tree) -> Tree | None:
        """What the method adds to the gradient of every step, whatever the gradient is; None for nothing."""
        del task, carry, params
        return None

    def step(self, task: Task, carry: State, params: Tree, grads: Tree) -> tuple[Tree, State]:
        """One local step: θ ← θ − η (∇L + pull)."""
        pull = self.pull(task, carry, params)
        return descend(params, grads if pull is None else add(grads, pull), task.lr), carry

    @property
    def descends(self) -> bool:
        """Whether `step` is the one above: engines then take it in place, without forming ∇L where they can."""
        return type(self).step is Algorithm.step

    def end(self, task: Task, carry: State, result: LocalResult) -> tuple[State, State]:
        """Finish a local round: the client's new state, and what it uploads besides its model."""
        del task, carry, result
        return {}, {}

    def aggregate(self, server: Server, updates: Updates, weights: Tensor) -> Server:
        """Θ ← Θ − η_g Σ_k w_k (Θ − θ_k), or another aggregator; buffers are combined alike."""
        return replace(
            server, model=self.advance(server.model, self.update(server.model, updates, weights), updates, weights)
        )

    def update(self, model: Model, updates: Updates, weights: Tensor) -> Tree:
        """Σ_k w_k (θ_k − Θ), or what the aggregator puts in its place."""
        return self.aggregator.centre(client_updates(model, updates), weights)

    def advance(self, model: Model, update: Tree, updates: Updates, weights: Tensor) -> Model:
        """Θ + η_g · update; buffers take no part in a method's update, they are the clients' own combined."""
        params = add(model.params, update, self.server_lr)
        return Model(params, aggregate_buffers(updates.model.buffers, weights, self.aggregator))

    def reported_models(self, server: Server) -> dict[str, Model]:
        """Models that the method's authors evaluate besides the one sent to clients, by name."""
        del server
        return {}


def checked(state: State, hook: str) -> State:
    """What a hook returned, if it is named trees; otherwise an error that says what was expected."""
    for name, tree in state.items() if isinstance(state, dict) else [("", state)]:
        if not isinstance(tree, dict) or not all(isinstance(tensor, Tensor) for tensor in tree.values()):
            found = f"{type(tree).__name__} under {name!r}" if name else type(tree).__name__
            raise UsageError(
                f"{hook} returned a {found}; it must return named trees, "
                'such as {"anchor": params} or {"anchor": {"scale": tensor}}'
            )
    return state


def descend(params: Tree, direction: Tree, lr: float) -> Tree:
    """θ − η · direction."""
    return add(params, direction, -lr)


def client_updates(model: Model, updates: Updates) -> Tree:
    """θ_k − Θ of every client."""
    return tree_map(torch.sub, updates.model.params, model.params)


def step_direction(start: Tree, end: Tree, lr: float, steps: Tensor) -> Tree:
    """(Θ − θ_k)/(η K_k): what a client went along in a step of its round, on average, in units of a gradient."""
    return tree_map(lambda x, y: (x - y) / (lr * per_client(steps, y)), start, end)


def differentiable(task: Task) -> Model:
    """The received model as every client's own, its parameters open to `gradient`."""
    clients = len(task.class_counts)
    params = tree_map(lambda tensor: tensor.detach().requires_grad_(), expand(task.start.params, clients))
    return Model(params, expand(task.start.buffers, clients))


def gradient(costs: Tensor, params: Tree) -> Tree:
    """The gradient of each client's cost, costs [C], by its own parameters."""
    return dict(
        zip(params, torch.autograd.grad(costs.sum(), list(params.values()), materialize_grads=True), strict=True)
    )


def aggregate_buffers(buffers: Tree, weights: Tensor, aggregator: Aggregator) -> Tree:
    """Floating buffers combined as the updates are; whole-number counters take the maximum.

    The mean is taken around the first client's, so that what all clients share stays as it is to the last bit.
    """
    floats = {name: tensor for name, tensor in buffers.items() if tensor.is_floating_point()}
    offsets = aggregator.centre(tree_map(lambda tensor: tensor - tensor[0], floats), weights)
    return {name: tensor[0] + offsets[name] if name in offsets else tensor.amax(0) for name, tensor in buffers.items()}


algorithms: Registry[Algorithm] = Registry("algorithm", Algorithm)
