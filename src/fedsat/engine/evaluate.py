"""Counting what a model predicts, in large batches."""

from __future__ import annotations

import torch
from torch import Tensor

from fedsat.algorithms import Model, Network
from fedsat.algorithms.objective import cross_entropy
from fedsat.engine.examples import Examples

BATCH = {"cpu": 256, "cuda": 4096}
"""Samples evaluated together: what fits a CPU's caches, what fills a GPU."""


@torch.inference_mode()
def count_and_loss(
    network: Network, model: Model, examples: Examples, indices: Tensor, owners: Tensor, classes: int
) -> tuple[Tensor, float]:
    """One model (client axis of length one) on the samples at `indices`.

    Returns a confusion matrix for each owner, [owners, m, m] (`owners` numbers the node each sample belongs
    to), and the mean loss over all samples.
    """
    size = BATCH[indices.device.type]
    groups = int(owners.max()) + 1
    counts = torch.zeros(groups * classes * classes, dtype=torch.int64, device=indices.device)
    total = torch.zeros((), dtype=torch.float64, device=indices.device)
    for part, owner in zip(torch.split(indices, size), torch.split(owners, size), strict=True):
        labels = examples.labels[part]
        logits = network(model.params, model.buffers, examples.inputs(part).unsqueeze(0)).logits[0]
        cells = (owner * classes + labels) * classes + logits.argmax(-1)
        counts += torch.bincount(cells, minlength=len(counts))
        total += cross_entropy(logits, labels).sum(dtype=torch.float64)
    return counts.view(groups, classes, classes), float(total / len(indices))
