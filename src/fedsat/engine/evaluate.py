"""Counting what a model predicts, in large batches."""

from __future__ import annotations

import torch
from torch import Tensor

from fedsat.algorithms import Model, Network
from fedsat.algorithms.objective import cross_entropy
from fedsat.engine.examples import Examples
from fedsat.metrics import Evaluation
from fedsat.tree import expand

BATCH = {"cpu": 256, "cuda": 1024}
"""Samples evaluated together: what fits a CPU's caches, what fills a GPU."""


@torch.inference_mode()
def count_and_loss(
    network: Network, model: Model, examples: Examples, indices: Tensor, owners: Tensor, groups: int, classes: int
) -> tuple[Tensor, Tensor]:
    """One model (client axis of length one) on the samples at `indices`.

    Returns a confusion matrix for each group, [groups, m, m] (`owners` says which group a sample belongs to), and
    the mean loss over all samples.
    """
    size = BATCH[indices.device.type]
    if indices.is_cuda:  # batches of one size: kernels are chosen once. What fills up goes to a group of its own.
        room = -len(indices) % size
        indices = torch.cat([indices, indices.new_zeros(room)])
        owners = torch.cat([owners, owners.new_full((room,), groups)])
    counts = torch.zeros((groups + 1) * classes * classes, dtype=torch.int64, device=indices.device)
    total = torch.zeros((), dtype=torch.float64, device=indices.device)
    for part, owner in zip(torch.split(indices, size), torch.split(owners, size), strict=True):
        labels = examples.labels[part]
        logits = network(model.params, model.buffers, examples.inputs(part).unsqueeze(0)).logits[0]
        cells = (owner * classes + labels) * classes + logits.argmax(-1)
        counts.scatter_add_(0, cells, torch.ones_like(cells))
        total += (cross_entropy(logits, labels) * (owner < groups)).sum(dtype=torch.float64)
    matrices = counts.view(groups + 1, classes, classes)[:groups]
    return matrices, total / matrices.sum()


def evaluate(network: Network, model: Model, examples: Examples, classes: int) -> Evaluation:
    """A model without client axis on all of `examples`."""
    indices = torch.arange(len(examples), device=examples.labels.device)
    stacked = Model(expand(model.params, 1), expand(model.buffers, 1))
    counts, loss = count_and_loss(network, stacked, examples, indices, torch.zeros_like(indices), 1, classes)
    return Evaluation(counts[0].cpu().numpy(), float(loss))
