"""The interface of a federated method: a few small functions whose defaults implement FedAvg.

Engines call them in this order, first for the local training of client k, then at the server:

    begin(task)                        -> carry          once, before the first step
    perturbation(task, carry, params, gradient) -> tree | None  where the gradient is taken, relative to θ
    penalty(task, carry, outputs, …)   -> tensor | None  added to the objective's loss of every sample
    pull(task, carry, params)          -> tree | None    added to the gradient, but does not depend on it
    step(task, carry, params, grads)   -> params, carry  one step of local training, with the run's optimizer
    end(task, carry, result)           -> state, upload  what the client keeps, what it sends besides its model
    aggregate(server, updates, weights) -> server        the next global model and the server's memory

All state is passed in and returned; `self` holds only hyper-parameters. The first axis of client tensors is the client,
even for a single client (see `fedsat.tree`).

Engines train many clients at once and capture `perturbation`, `penalty`, `pull` and `step` as graphs. These functions
must not branch on tensor values, and the carry must keep its names and shapes. Gradients are tracked only in `penalty`.

The gradient is taken at θ unless `perturbation` returns a tree ε. Then it is taken at θ + ε, and the step starts at θ.
If ε depends on the gradient at θ, `perturbation` calls `gradient()`, which is an extra pass over the batch. Only the
pass at θ + ε updates BatchNorm's statistics and the objective's carry, and gives the loss that is recorded.

The loss of a sample (`Objective`), the weight of a client (`Weighting`) and the way updates are combined (`Aggregator`)
are separate parts, so each can be used with any method.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Protocol

import torch
from torch import Tensor

from fedsat.algorithms.aggregator import Aggregator, aggregators
from fedsat.algorithms.objective import CrossEntropy, Objective, objective_losses, objectives
from fedsat.algorithms.optimizer import SGD
from fedsat.algorithms.weighting import BySamples, Weighting, weightings
from fedsat.errors import UsageError
from fedsat.options import Option, check, options_of
from fedsat.registry import Registry
from fedsat.tree import State, Tree, add, expand, per_client, tree_map, zeros_like


@dataclass(frozen=True)
class Model:
    """The weights of a network: trainable parameters, and buffers such as BatchNorm's running statistics."""

    params: Tree
    buffers: Tree


@dataclass(frozen=True)
class Server:
    """The state of the server between rounds: the global model Θ and the method's memory."""

    model: Model
    memory: State = field(default_factory=dict)


@dataclass(frozen=True)
class Batch:
    """One batch of every client: inputs [C, B, …], labels [C, B], and a mask that is False for padding, [C, B]."""

    x: Tensor
    y: Tensor
    real: Tensor


@dataclass(frozen=True)
class Outputs:
    """The outputs of the network: logits [C, B, m] and, for methods that use it, the input of the last layer."""

    logits: Tensor
    features: Tensor | None = None
    received: Tensor | None = None
    """The received model's logits in evaluation mode, [C, B, m], for objectives that use them."""


class Network(Protocol):
    """The network as a function of stacked weights, in evaluation mode."""

    def __call__(self, params: Tree, buffers: Tree, x: Tensor) -> Outputs:
        """Return the outputs for x [C, B, …], differentiable in `params`, without changing `buffers`."""


@dataclass(frozen=True)
class Task:
    """The local training of C clients in one round, as a method sees it."""

    start: Model
    """Θ_t, the received model (no client axis)."""
    received: State
    """The result of `broadcast` (no client axis)."""
    state: State
    """The state that each client kept from its last participation."""
    class_counts: Tensor
    """Number of samples per client and class, [C, m]."""
    mean_samples: float
    """n/N, the mean number of samples over all clients, sampled or not."""
    lr: float | Tensor
    """η, the local learning rate of this round; a tensor without axes in steps that are captured for several rates."""
    epochs: int
    """E, the number of local epochs."""
    network: Network
    examples: Callable[[], Iterator[Batch]]
    """Iterate once over each client's samples in batches, without shuffling or augmentation; in `begin` and `end`."""
    optimizer: SGD = SGD()
    """The local optimizer; what it carries from step to step is part of the carry."""


def no_examples() -> Iterator[Batch]:
    """Raise an error: engines repeat the functions of a step as a fixed sequence of operations."""
    raise UsageError(
        "task.examples() is available in begin and end, not in perturbation, penalty, pull or step; "
        "compute what you need in begin and return it as carry"
    )


@dataclass(frozen=True)
class LocalResult:
    """The result of local training: the clients' models θ_k and the numbers of steps K_k, [C]."""

    params: Tree
    buffers: Tree
    steps: Tensor
    costs: Tree = field(default_factory=dict)
    """The objective's carry after the last step."""


@dataclass(frozen=True)
class Updates:
    """What the server received in a round, stacked over the K clients that responded."""

    clients: Tensor
    model: Model
    uploads: State
    sizes: Tensor
    """n_k, number of samples."""
    steps: Tensor
    """K_k, number of local steps."""
    lr: float
    """η, the local learning rate of this round."""
    epochs: int
    population: int
    """N, the number of all clients, sampled or not."""
    optimizer: SGD = SGD()
    """The clients' local optimizer."""
    noise: float = 0.0
    """Standard deviation, in every coordinate of the weighted mean, of the noise that protects privacy."""

    def take(self, order: list[int]) -> Updates:
        """Return the clients at the given positions, in that order."""

        places = torch.tensor(order, dtype=torch.int64, device=self.steps.device)

        def taken(tree: Tree) -> Tree:
            return tree_map(lambda tensor: tensor[places], tree)

        return replace(
            self,
            clients=self.clients[order],
            model=Model(taken(self.model.params), taken(self.model.buffers)),
            uploads={name: taken(tree) for name, tree in self.uploads.items()},
            sizes=self.sizes[places],
            steps=self.steps[places],
        )


@dataclass(frozen=True)
class Algorithm:
    """Base class of federated methods. Its defaults implement FedAvg."""

    server_lr: Annotated[float, Option("η_g, global learning rate", above=0)] = 1.0
    objective: Annotated[Objective, Option("loss of a sample", among=objectives)] = CrossEntropy()
    weighting: Annotated[Weighting, Option("weight of a client", among=weightings)] = BySamples()
    aggregator: Annotated[Aggregator, Option("how updates are combined", among=aggregators)] = Aggregator()

    uses_features: ClassVar[bool] = False
    """Whether `penalty` reads `outputs.features`."""
    constant_pull: ClassVar[str] = ""
    """The name, in the carry, of a term that is added to the gradient of every step and constant during a round."""

    def __post_init__(self) -> None:
        check(self, "algorithm")

    @property
    def refuses(self) -> Mapping[str, str]:
        """Settings of local training under which the method's formulas do not hold, each with the reason.

        `optimizer` stands for any optimizer other than SGD. By default, a method that overrides `step` refuses it and
        every option of SGD.
        """
        ignored = () if type(self).step is Algorithm.step else ("optimizer", *options_of(SGD))
        return dict.fromkeys(ignored, "it has its own step")

    @property
    def follows_from_model(self) -> frozenset[str]:
        """Names of the uploads that follow from θ_k, the number of steps and what the server sent.

        A private client computes them from its noised model.
        """
        return frozenset()

    @property
    def uses_mean_only(self) -> bool:
        """Whether `aggregate` uses the clients' models only through their weighted mean, `update`."""
        return type(self).aggregate is Algorithm.aggregate

    @property
    def uses_steps(self) -> bool:
        """Whether what the server computes depends on the clients' numbers of steps, given the mean of their models."""
        return type(self).start_of_update is not Algorithm.start_of_update

    def initial_memory(self, model: Model) -> State:
        """Return the server's memory before the first round."""
        del model
        return {}

    def broadcast(self, server: Server) -> State:
        """Return what the server sends to clients besides the model."""
        del server
        return {}

    def initial_client_state(self, model: Model) -> State:
        """Return the state of a client that participates for the first time (no client axis); `model` is Θ."""
        del model
        return {}

    def begin(self, task: Task) -> State:
        """Prepare local training: return what `penalty` and `step` need."""
        del task
        return {}

    def perturbation(self, task: Task, carry: State, params: Tree, gradient: Callable[[], Tree]) -> Tree | None:
        """Return ε if the gradient is taken at θ + ε, or None; `gradient()` returns the gradient at θ."""
        del task, carry, params, gradient
        return None

    def penalty(self, task: Task, carry: State, outputs: Outputs, batch: Batch) -> Tensor | None:
        """Return the method's term in the loss of each sample, [C, B], or None."""
        del task, carry, outputs, batch
        return None

    def pull(self, task: Task, carry: State, params: Tree) -> Tree | None:
        """Return the method's term in the gradient of every step, or None. It must not depend on the gradient.

        By default, this is the tree of the carry that `constant_pull` names.
        """
        del task, params
        return carry.get(self.constant_pull)

    def step(self, task: Task, carry: State, params: Tree, grads: Tree) -> tuple[Tree, State]:
        """Take one local step: θ ← θ − η d, where d is what the optimizer makes of ∇L + pull."""
        pull = self.pull(task, carry, params)
        direction, carry = task.optimizer.direction(params, grads if pull is None else add(grads, pull), carry)
        return descend(params, direction, task.lr), carry

    @property
    def descends(self) -> bool:
        """Whether `step` is the default one. With a plain optimizer, engines then apply it in place, without ∇L."""
        return type(self).step is Algorithm.step

    def start_of_update(self, task: Task, steps: Tensor) -> Tree:
        """Return Θ', where a client's model would be after these steps [C] without its own samples.

        A private client clips θ_k − Θ'. Θ' must follow from what the server sent and from public settings.
        """
        del steps
        return task.start.params

    def end(self, task: Task, carry: State, result: LocalResult) -> tuple[State, State]:
        """Finish local training: return the client's new state and what it uploads besides its model."""
        del task, carry, result
        return {}, {}

    def aggregate(self, server: Server, updates: Updates, weights: Tensor) -> Server:
        """Update the model: Θ ← Θ − η_g Σ_k w_k (Θ − θ_k), or the aggregator's replacement; likewise for buffers."""
        return replace(
            server, model=self.advance(server.model, self.update(server.model, updates, weights), updates, weights)
        )

    def update(self, model: Model, updates: Updates, weights: Tensor) -> Tree:
        """Return Σ_k w_k (θ_k − Θ), or the aggregator's replacement for it."""
        return self.aggregator.centre(client_updates(model, updates), weights)

    def advance(self, model: Model, update: Tree, updates: Updates, weights: Tensor) -> Model:
        """Return Θ + η_g · update. Buffers are aggregated directly; the method's update does not apply to them."""
        params = add(model.params, update, self.server_lr)
        return Model(params, aggregate_buffers(updates.model.buffers, weights, self.aggregator))

    def reported_models(self, server: Server) -> dict[str, Model]:
        """Return, by name, models that the method's authors evaluate besides the one sent to clients."""
        del server
        return {}


def checked(state: State, hook: str) -> State:
    """Return the result of a hook if it consists of named trees, otherwise raise an error."""
    for name, tree in state.items() if isinstance(state, dict) else [("", state)]:
        if not isinstance(tree, dict) or not all(isinstance(tensor, Tensor) for tensor in tree.values()):
            found = f"{type(tree).__name__} under {name!r}" if name else type(tree).__name__
            raise UsageError(
                f"{hook} returned a {found}; it must return named trees, "
                'such as {"anchor": params} or {"anchor": {"scale": tensor}}'
            )
    return state


def sample_losses(
    algorithm: Algorithm, task: Task, carry: State, costs: Tree, outputs: Outputs, batch: Batch
) -> tuple[Tensor, Tree]:
    """Return the loss of each sample, the objective's plus the method's term, and the objective's carry."""
    losses, costs = objective_losses(algorithm.objective, task, costs, outputs, batch)
    penalty = algorithm.penalty(task, carry, outputs, batch)
    return losses if penalty is None else losses + penalty, costs


def descend(params: Tree, direction: Tree, lr: float | Tensor) -> Tree:
    """Return θ − η · direction."""
    return add(params, direction, -lr)


def client_updates(model: Model, updates: Updates) -> Tree:
    """Return θ_k − Θ of every client."""
    return tree_map(torch.sub, updates.model.params, model.params)


def step_direction(start: Tree, end: Tree, local: Task | Updates, steps: Tensor) -> Tree:
    """Return (Θ − θ_k)/(η K_k), the mean direction of a client's steps in units of a gradient.

    With momentum, K_k is replaced by the optimizer's `effective_steps`, which makes it a weighted mean.
    """
    taken = local.optimizer.effective_steps(steps)
    return tree_map(lambda x, y: (x - y) / (local.lr * per_client(taken, y)), start, end)


def pulled(task: Task, direction: Tree, steps: Tensor) -> Tree:
    """Return Θ − η A_K d for each client: the model after steps whose gradients are the term d alone, stacked."""
    taken = task.optimizer.effective_steps(steps)
    return tree_map(lambda x, d: x - task.lr * per_client(taken, x[None]) * d, task.start.params, direction)


def received_model(task: Task) -> Model:
    """Return one copy of the received model per client, sharing memory."""
    clients = len(task.class_counts)
    return Model(expand(task.start.params, clients), expand(task.start.buffers, clients))


def differentiable(model: Model) -> Model:
    """Return the model with parameters that require gradients."""
    return Model(tree_map(lambda tensor: tensor.detach().requires_grad_(), model.params), model.buffers)


def gradient(costs: Tensor, params: Tree) -> Tree:
    """Return the gradient of each client's cost (costs [C]) with respect to its parameters."""
    return dict(
        zip(params, torch.autograd.grad(costs.sum(), list(params.values()), materialize_grads=True), strict=True)
    )


def full_gradient(task: Task, objective: Objective, model: Model, costs: Tree) -> Tree:
    """Return the gradient of each client's mean loss over all its samples at `model`, in evaluation mode.

    `costs` is the objective's carry before the first batch.
    """
    model = differentiable(model)
    total = zeros_like(model.params)
    for batch in task.examples():
        with torch.enable_grad():
            outputs = task.network(model.params, model.buffers, batch.x)
            losses, costs = objective_losses(objective, task, costs, outputs, batch)
            grads = gradient(losses.masked_fill(~batch.real, 0.0).sum(1), model.params)
        total = add(total, grads)
    return tree_map(lambda sums: sums / per_client(task.class_counts.sum(1), sums), total)


def aggregate_buffers(buffers: Tree, weights: Tensor, aggregator: Aggregator) -> Tree:
    """Aggregate floating-point buffers like updates; integer counters take the maximum.

    Averaging offsets from the first client keeps values that all clients share exactly unchanged.
    """
    floats = {name: tensor for name, tensor in buffers.items() if tensor.is_floating_point()}
    offsets = aggregator.centre(tree_map(lambda tensor: tensor - tensor[0], floats), weights)
    return {name: tensor[0] + offsets[name] if name in offsets else tensor.amax(0) for name, tensor in buffers.items()}


algorithms: Registry[Algorithm] = Registry("algorithm", Algorithm, "methods")
