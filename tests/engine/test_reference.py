"""The engine equals FedAvg and FedSat written as plain PyTorch loops, formula by formula."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedsat.algorithms import Algorithm, FedAvg, FedSat, PrioritizedClassWeights
from fedsat.engine import SequentialEngine
from fedsat.models import build_model
from fedsat.rounds import Sampling, run_round, start
from fedsat.rounds.sampling import batch_order, sample_clients, sample_workers
from tests.support.federations import make_engine

SAMPLING = Sampling(per_round=3, workers=3, seed=3)


def samples(engine: SequentialEngine, client: int) -> tuple[Tensor, Tensor]:
    """Return a client's normalised samples from the dataset."""
    dataset, held = engine.federation.dataset, engine.federation.indices(client)
    x = (dataset.train.images[held].astype(np.float64) - np.array(dataset.mean)) / np.array(dataset.std)
    return torch.from_numpy(x), torch.from_numpy(dataset.train.labels[held])


def flat(module: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def plain_training(engine: SequentialEngine, rounds: int, fedsat: bool) -> Tensor:
    """FedAvg, or FedSat with its default options, over flat parameter vectors."""
    federation, training = engine.federation, engine.training
    dataset = federation.dataset
    model = build_model("mlp", dataset.input_shape, dataset.classes, 3).double()
    size = len(flat(model))
    v, v_clients = torch.zeros(size).double(), torch.zeros(federation.clients, size).double()
    for number in range(1, rounds + 1):
        sampled = sample_clients(3, number, federation.clients, SAMPLING.per_round).tolist()
        start_point = flat(model)
        locals_, steps = [], []
        for k in sampled:
            x, y = samples(engine, k)
            local = copy.deepcopy(model)
            drift = 0.9 * (v - v_clients[k])
            confusion = torch.zeros(dataset.classes, dataset.classes).double()
            count = 0
            for order in batch_order(3, number, k, len(y), training.epochs):
                for first in range(0, len(y), training.batch_size):
                    batch = torch.from_numpy(order[first : first + training.batch_size])
                    logits = local(x[batch])
                    if fedsat:
                        shifted = logits + calibration(y, y[batch], logits.argmax(1), dataset.classes)
                        losses = functional.cross_entropy(shifted, y[batch], reduction="none")
                        losses = costs(confusion, y[batch], logits.argmax(1)) * losses
                    else:
                        losses = functional.cross_entropy(logits, y[batch], reduction="none")
                    local.zero_grad()
                    losses.mean().backward()  # type: ignore[no-untyped-call]
                    offset = 0
                    with torch.no_grad():
                        for p in local.parameters():
                            assert p.grad is not None
                            piece = drift[offset : offset + p.numel()].view_as(p) if fedsat else 0.0
                            p.sub_(training.lr * (p.grad + piece))
                            offset += p.numel()
                    count += 1
            locals_.append(local)
            steps.append(count)
            v_clients[k] = (start_point - flat(local)) / (training.lr * count) - drift
        weights = np.array([len(federation.indices(k)) for k in sampled], dtype=np.float64)
        if fedsat:
            weights = priority_weights(engine, locals_, sampled, number)
        weights = weights / weights.sum()
        target = sum(w * flat(local) for w, local in zip(weights, locals_, strict=True))
        assert isinstance(target, Tensor)
        if fedsat:
            target = limited(start_point, target, [flat(local) for local in locals_], weights, np.array(steps))
        v = (start_point - target) / (training.lr * float(weights @ np.array(steps)))
        nn.utils.vector_to_parameters(target, model.parameters())
    return flat(model)


def limited(start: Tensor, target: Tensor, ends: list[Tensor], weights: np.ndarray, steps: np.ndarray) -> Tensor:
    """Shorten the step to the usual update, times Σ w_k max(1, K_k/K̃).

    The usual length is the median over the clients, or the weighted median if it is smaller.
    """
    lengths = np.array([float((end - start).norm()) for end in ends])
    order = np.argsort(lengths)
    middle = lengths[order][np.searchsorted(weights[order].cumsum(), 0.5)]
    longest = min(np.median(lengths), middle) * float(weights @ np.maximum(1, steps / np.median(steps)))
    length = float((target - start).norm())
    return start + (target - start) * (longest / length if length > longest else 1.0)


def calibration(held: Tensor, labels: Tensor, predicted: Tensor, classes: int) -> Tensor:
    """Return log(share + 0.01) of every class, but 0 for a wrongly predicted class, for each sample."""
    rows = []
    for true, guess in zip(labels.tolist(), predicted.tolist(), strict=True):
        row = [np.log(float((held == c).sum()) / len(held) + 0.01) for c in range(classes)]
        if true != guess:
            row[guess] = 0.0
        rows.append(row)
    return torch.tensor(rows, dtype=torch.float64)


def costs(confusion: Tensor, labels: Tensor, predicted: Tensor) -> Tensor:
    for true, guess in zip(labels.tolist(), predicted.tolist(), strict=True):
        confusion[true, guess] += 1
    errors = [float(confusion[p, q]) for p in range(len(confusion)) for q in range(len(confusion)) if p != q]
    low, high = min(errors), max(errors)
    values = []
    for true, guess in zip(labels.tolist(), predicted.tolist(), strict=True):
        share = (float(confusion[true, guess]) - low) / (high - low) if high > low else 0.0
        values.append(1.0 if true == guess else 1 + 3 * share)  # ε₁ = 1, ε₂ = 4
    return torch.tensor(values, dtype=torch.float64)


def priority_weights(engine: SequentialEngine, locals_: list[nn.Module], sampled: list[int], number: int) -> np.ndarray:
    """ϑ = P_k (soft), σ = 2; without the floor on effective clients."""
    workers = sample_workers(3, number, engine.federation.clients, np.array(sampled), SAMPLING.workers)
    classes = engine.federation.dataset.classes
    scores, accuracies = [], []
    for local, row in zip(locals_, workers, strict=True):
        z, tp, t = np.zeros(classes), np.zeros(classes), np.zeros(classes)
        for worker in row.tolist():
            x, y = samples(engine, worker)
            guess = local(x).argmax(1)
            z += np.bincount(guess.numpy(), minlength=classes)
            t += np.bincount(y.numpy(), minlength=classes)
            tp += np.bincount(y[guess == y].numpy(), minlength=classes)
        fnr = (t - tp) / np.maximum(tp, 1)
        fpr = (z - tp) / (t.sum() - t)
        scores.append(0.3 * fnr / (fnr.max() or 1) + 0.2 * fpr / (fpr.max() or 1))
        accuracies.append(np.where(t > 0, tp / np.maximum(t, 1), 0))
    e = np.array(scores)
    q = e.sum(0) / e.sum()
    kept = e.sum(1) <= 2 * e.sum(1).mean()
    return np.array(accuracies) @ q * kept


@pytest.mark.parametrize(
    ("algorithm", "fedsat"),
    [(FedAvg(), False), (FedSat(weighting=PrioritizedClassWeights(min_effective=0)), True)],
)
@pytest.mark.parametrize("partition", ["ls", "lqsmc"])
def test_engine_equals_plain_loops(algorithm: Algorithm, fedsat: bool, partition: str) -> None:
    engine = make_engine(algorithm, partition=partition, clients=7)
    training = start(engine)
    for _ in range(4):
        run_round(engine, training, SAMPLING)
    ours = torch.cat([tensor.flatten() for tensor in training.server.model.params.values()])
    torch.testing.assert_close(ours, plain_training(engine, 4, fedsat), rtol=0, atol=1e-11)
