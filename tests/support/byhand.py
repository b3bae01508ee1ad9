"""Federations that can be calculated by hand, and helpers for tests of methods."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from fedsat.algorithms import SGD, Algorithm, Batch, LocalResult, Model, Outputs, Server, Task, Updates
from fedsat.rounds import Sampling, run_round, start
from fedsat.tree import State, Tree, concatenate
from tests.support.federations import make_engine


def one(*values: float) -> Tree:
    """A tree with one scalar parameter, stacked over clients."""
    return {"w": torch.tensor(values, dtype=torch.float64).unsqueeze(1)}


def scalar(value: float) -> Tree:
    """A tree with one scalar parameter, without client axis."""
    return {"w": torch.tensor([value], dtype=torch.float64)}


def values(tree: Tree) -> list[float]:
    """The numbers of a tree of one scalar."""
    return [float(value) for value in tree["w"].flatten()]


def make_task(clients: int, **given: Any) -> Task:
    """Return a task of clients that each hold a sample of both classes; `given` replaces fields."""
    usual: dict[str, Any] = {
        "start": Model(scalar(1.0), {}),
        "received": {},
        "state": {},
        "class_counts": torch.ones(clients, 2, dtype=torch.int64),
        "mean_samples": 2.0,
        "lr": 0.1,
        "epochs": 5,
        "network": lambda params, buffers, x: Outputs(x),
        "examples": lambda: iter(()),
    }
    return Task(**{**usual, **given})


def make_updates(params: Tree, steps: list[int], lr: float, **given: Any) -> Updates:
    """Return the updates of clients with these models; they have equal sizes and are all clients of the federation."""
    clients = len(steps)
    usual: dict[str, Any] = {
        "clients": torch.arange(clients),
        "model": Model(params, {}),
        "uploads": {},
        "sizes": torch.ones(clients, dtype=torch.int64),
        "steps": torch.tensor(steps),
        "lr": lr,
        "epochs": 5,
        "population": clients,
    }
    return Updates(**{**usual, **given})


def make_batch(x: Any, y: Any, real: Any = None) -> Batch:
    """Return a batch from nested lists; without `real`, nothing is padding."""
    labels = torch.tensor(y)
    marks = torch.ones_like(labels, dtype=torch.bool) if real is None else torch.tensor(real)
    return Batch(torch.tensor(x, dtype=torch.float64), labels, marks)


@dataclass(frozen=True)
class Bowl:
    """A client whose loss is ½(θ − b)²: every gradient is θ − b. It takes K steps and weighs n samples."""

    b: float
    K: int
    n: int = 1


class Bowls:
    """A federation of bowls, trained with a method's functions, one client after another."""

    def __init__(
        self, method: Algorithm, bowls: list[Bowl], lr: float, begin: float = 0.0, optimizer: SGD | None = None
    ) -> None:
        self.method, self.bowls, self.lr, self.optimizer = method, bowls, lr, optimizer or SGD()
        model = Model(scalar(begin), {})
        self.server = Server(model, method.initial_memory(model))
        self.states: dict[int, State] = {}

    def run_round(self, *sampled: int) -> None:
        """Run a round with the sampled clients."""
        results = [self._train(client) for client in sampled]
        bowls = [self.bowls[client] for client in sampled]
        updates = make_updates(
            concatenate([params for params, _ in results]),
            [bowl.K for bowl in bowls],
            self.lr,
            clients=torch.tensor(sampled),
            sizes=torch.tensor([bowl.n for bowl in bowls]),
            uploads={name: concatenate([upload[name] for _, upload in results]) for name in results[0][1]},
            population=len(self.bowls),
            optimizer=self.optimizer,
        )
        weights = self.method.weighting.weigh(updates, None).weights
        self.server = self.method.aggregate(self.server, updates, weights)

    def _train(self, client: int) -> tuple[Tree, State]:
        method, bowl, model = self.method, self.bowls[client], self.server.model
        fresh = {name: one(*values(tree)) for name, tree in method.initial_client_state(model).items()}
        kept = self.states.get(client, fresh)
        task = make_task(
            1,
            start=model,
            received=method.broadcast(self.server),
            state=kept,
            lr=self.lr,
            class_counts=torch.tensor([[bowl.n]]),
            mean_samples=sum(bowl.n for bowl in self.bowls) / len(self.bowls),
        )
        task, params = replace(task, optimizer=self.optimizer), one(*values(model.params))
        carry = {**method.begin(task), **self.optimizer.begin(params)}
        for _ in range(bowl.K):
            slope = {"w": params["w"] - bowl.b}
            perturbation = method.perturbation(task, carry, params, lambda slope=slope: slope)
            if perturbation is not None:
                slope = {"w": slope["w"] + perturbation["w"]}
            params, carry = method.step(task, carry, params, slope)
        self.states[client], upload = method.end(task, carry, LocalResult(params, {}, torch.tensor([bowl.K])))
        return params, upload

    @property
    def theta(self) -> float:
        """Θ."""
        return float(self.server.model.params["w"])

    def memory(self, name: str) -> float:
        """Return the server's memory under `name`."""
        return float(self.server.memory[name]["w"])

    def kept(self, client: int, name: str) -> float:
        """Return a client's state under `name`."""
        return float(self.states[client][name]["w"])


def after_rounds(algorithm: Algorithm, rounds: int = 3, per_round: int = 3, **settings: Any) -> Model:
    """Return the global model after some rounds on a small skewed federation."""
    settings.setdefault("partition", {"name": "lsmc", "classes_per_client": 2})
    engine = make_engine(algorithm, **settings)
    training = start(engine)
    for _ in range(rounds):
        run_round(engine, training, Sampling(per_round=per_round, workers=2, seed=3))
    return training.server.model


def same(left: Model, right: Model) -> bool:
    """Whether two models are equal bit for bit, buffers included."""
    pairs = [(left.params, right.params), (left.buffers, right.buffers)]
    return all(ours.keys() == theirs.keys() for ours, theirs in pairs) and all(
        torch.equal(ours[name], theirs[name]) for ours, theirs in pairs for name in ours
    )
