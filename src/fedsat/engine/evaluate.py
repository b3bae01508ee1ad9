"""Count the predictions of models in large batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fedsat.algorithms import Model, Network
from fedsat.algorithms.objective import cross_entropy
from fedsat.engine.examples import Examples
from fedsat.engine.fused import FusedNetwork
from fedsat.engine.kernels import compile_together
from fedsat.metrics import NO_DETAIL, Detail, Evaluation, Floats, accuracy_by_client, histograms
from fedsat.seeding import Indices
from fedsat.tree import expand, tree_map, write

TOGETHER = 16
"""Largest number of models that are evaluated at once on a CPU."""

SAMPLES = 64
"""Smallest number of samples per model at a time; with fewer, matrix products are inefficient."""


@dataclass(frozen=True)
class Tally:
    """Confusion matrices of groups of samples, [groups, m, m], and the sum of all samples' losses."""

    counts: Tensor
    loss: Tensor
    scores: Tensor | None = None
    """Histograms of the scores, [groups, m + 1, BINS, 2], or of all samples together, [1, …], if they are counted."""

    @staticmethod
    def empty(groups: int, classes: int, device: torch.device, scored: int = 0) -> Tally:
        """Return zero counts, and histograms for `scored` groups."""
        counts = torch.zeros(groups, classes, classes, dtype=torch.int64, device=device)
        scores = histograms.empty(scored, classes, device) if scored else None
        return Tally(counts, torch.zeros((), dtype=torch.float64, device=device), scores)

    @property
    def mean_loss(self) -> float:
        """The mean loss of the counted samples."""
        return float(self.loss / self.counts.sum())


class Counter:
    """Counts the predictions of a network on the samples of a split, `batch` samples at a time."""

    def __init__(self, network: Network, examples: Examples, classes: int, batch: int) -> None:
        self.network, self.examples, self.classes, self.batch = network, examples, classes, batch

    @torch.inference_mode()
    def count(self, model: Model, indices: Tensor, owners: Tensor, groups: int, scored: int = 0) -> Tally:
        """Evaluate one model (client axis of length one) on the samples at `indices`; `owners` are their groups.

        Scores are counted for all samples together if `scored` is 1, and for each group if it is the number of groups.
        """
        tally = Tally.empty(groups, self.classes, indices.device, scored)
        for start in range(0, len(indices), self.batch):
            self._add(tally, model, indices[start : start + self.batch], owners[start : start + self.batch])
        return tally

    def evaluate(
        self, model: Model, owners: Indices | None = None, clients: int = 0, detail: Detail = NO_DETAIL
    ) -> Evaluation:
        """Evaluate a model without client axis on all samples of the split.

        If the split is divided among clients, `owners` are the clients of the samples, N for samples of no client. The
        result then has each client's counts and accuracy on its part.
        """
        indices = torch.arange(len(self.examples), device=self.examples.labels.device)
        groups = torch.zeros_like(indices) if owners is None else torch.from_numpy(owners).to(indices.device)
        alone = Model(expand(model.params, 1), expand(model.buffers, 1))
        scored = clients + 1 if detail.client_scores else int(detail.scores)
        tally = self.count(alone, indices, groups, clients + 1, scored)
        counts = tally.counts.cpu().numpy()
        scores = None if tally.scores is None else tally.scores.cpu().numpy()
        apart = counts[:clients] if owners is not None else None
        return Evaluation(
            counts.sum(axis=0),
            tally.mean_loss,
            accuracy_by_client(counts[:clients]),
            lambda: self.predict(alone),
            histograms=None if scores is None else scores.sum(axis=0),
            client_confusion=apart,
            client_histograms=scores[:clients] if scores is not None and detail.client_scores else None,
        )

    @torch.inference_mode()
    def predict(self, model: Model, indices: Tensor | None = None) -> tuple[Floats, NDArray[np.int64]]:
        """Return a model's class probabilities on samples of the split, by default all, [n, m], and their labels."""
        scores, labels = [], self.examples.labels
        indices = torch.arange(len(labels), device=labels.device) if indices is None else indices
        for part in torch.split(indices, self.batch):
            logits = self.network(model.params, model.buffers, self.examples.inputs(part).unsqueeze(0)).logits[0]
            scores.append(logits.to(torch.float64).softmax(-1).cpu())
        return torch.cat(scores).numpy(), labels[indices].cpu().numpy()

    def _add(self, tally: Tally, model: Model, part: Tensor, owner: Tensor) -> None:
        """Count one batch, except samples with group -1."""
        labels, counted = self.examples.labels[part], owner >= 0
        logits = self.network(model.params, model.buffers, self.examples.inputs(part).unsqueeze(0)).logits[0]
        cells = (owner.clamp(min=0) * self.classes + labels) * self.classes + logits.argmax(-1)
        tally.counts.view(-1).scatter_add_(0, cells, counted.to(torch.int64))
        tally.loss.add_(torch.where(counted, cross_entropy(logits, labels), 0).sum(dtype=torch.float64))
        if tally.scores is not None:
            groups = owner.clamp(min=0, max=len(tally.scores) - 1)
            histograms.add_scores(tally.scores, logits, labels, groups, counted)

    @torch.inference_mode()
    def count_each(self, model: Model, samples: Sequence[Tensor], owners: Sequence[Tensor], groups: int) -> Tensor:
        """Evaluate stacked models, each on its own samples, and return confusion matrices [C, groups, m, m].

        On a CPU, evaluating several models at once is faster because single layers may have few channels. All models
        together use at most `batch` samples at a time. Larger batches exceed the CPU's caches and the C library's
        memory pool, so every layer output would be newly allocated. Models are sorted by their number of samples, so
        those with samples left always come first.
        """
        counts = torch.zeros(len(samples), groups, self.classes, self.classes, dtype=torch.int64)
        order = sorted(range(len(samples)), key=lambda k: -len(samples[k]))
        together = max(1, min(TOGETHER, self.batch // SAMPLES))
        for start in range(0, len(order), together):
            chunk = order[start : start + together]
            models = _some(model, chunk)
            indices = pad_sequence([samples[k] for k in chunk])
            groups_of = pad_sequence([owners[k] for k in chunk], padding_value=-1)
            size = self.batch // len(chunk)
            for first in range(0, len(indices), size):
                still = [k for k in chunk if len(samples[k]) > first]
                part, owner = (table[first : first + size, : len(still)] for table in (indices, groups_of))
                cells = self._cells(_some(models, slice(0, len(still))), part, owner)
                tables = counts.new_zeros(len(still), counts[0].numel())
                tables.scatter_add_(1, cells, (owner.t() >= 0).to(torch.int64))
                counts[still] += tables.view(-1, *counts.shape[1:])
        return counts

    def _cells(self, model: Model, part: Tensor, owner: Tensor) -> Tensor:
        """Return the cell of its model's tables that each sample [B, C] belongs to, [C, B]."""
        x = self.examples.inputs(part.reshape(-1))
        predicted = self.network(model.params, model.buffers, x.view(*part.shape, *x.shape[1:]).transpose(0, 1))
        labels = self.examples.labels[part.t()]
        return (owner.t().clamp(min=0) * self.classes + labels) * self.classes + predicted.logits.argmax(-1)


class GraphedCounter(Counter):
    """A counter that replays a CUDA graph per batch, because small networks spend most time on kernel launches.

    If the network has a faster form for a single model, another graph prepares the weights once for each model.
    """

    def __init__(
        self, network: Network, examples: Examples, classes: int, batch: int, fused: FusedNetwork | None = None
    ) -> None:
        super().__init__(network, examples, classes, batch)
        self._fused = fused
        self._each = self if fused is None else Counter(fused, examples, classes, batch)
        self._graph: torch.cuda.CUDAGraph | None = None

    @torch.inference_mode()
    def count(self, model: Model, indices: Tensor, owners: Tensor, groups: int, scored: int = 0) -> Tally:
        """Count as in `Counter`; the last batch is padded with samples that do not count. Scores need no graph."""
        if scored:
            return super().count(model, indices, owners, groups, scored)
        batches = -(-len(indices) // self.batch)
        if self._graph is None or groups > len(self._tally.counts) or batches > len(self._table):
            self._allocate(model, groups, max(batches, -(-len(self.examples) // self.batch)), indices.device)
            self._record()
        assert self._graph is not None
        write(self._model.params, model.params)
        write(self._model.buffers, model.buffers)
        if self._preparing is not None:
            self._preparing.replay()
        self._tally.counts.zero_()
        self._tally.loss.zero_()
        self._number.zero_()
        room = batches * self.batch - len(indices)
        for place, (values, empty) in enumerate(((indices, 0), (owners, -1))):
            self._table[:batches, place] = torch.cat([values, values.new_full((room,), empty)]).view(-1, self.batch)
        for _ in range(batches):
            self._graph.replay()
        return Tally(self._tally.counts[:groups].clone(), self._tally.loss.clone())

    def count_each(self, model: Model, samples: Sequence[Tensor], owners: Sequence[Tensor], groups: int) -> Tensor:
        """Evaluate stacked models, each on its own samples, one model after another."""
        each = (_some(model, slice(place, place + 1)) for place in range(len(samples)))
        return torch.stack([self.count(*given, groups).counts for given in zip(each, samples, owners, strict=True)])

    def _allocate(self, model: Model, groups: int, batches: int, device: torch.device) -> None:
        """Reserve the fixed memory of the graphs."""
        self._model = Model(tree_map(torch.clone, model.params), tree_map(torch.clone, model.buffers))
        self._tally = Tally.empty(groups, self.classes, device)
        self._table = torch.zeros(batches, 2, self.batch, dtype=torch.int64, device=device)
        """The samples of each batch, and their groups."""
        self._number = torch.zeros(1, dtype=torch.int64, device=device)

    def _record(self) -> None:
        """Capture a batch, and the preparation of a model, after a few batches in which torch chooses its kernels."""
        device = self._number.device
        side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            self._prepare()
            compile_together(self._take_batch)
            for _ in range(3):
                self._number.zero_()
                self._take_batch()
        torch.cuda.current_stream(device).wait_stream(side)
        self._preparing = None if self._fused is None else captured(self._prepare)
        self._graph = captured(self._take_batch)

    def _prepare(self) -> None:
        self._prepared = self._model if self._fused is None else self._fused.prepare(self._model)

    def _take_batch(self) -> None:
        """Count one batch; a counter on the device selects it, so that nothing waits for the host."""
        part, owner = self._table.index_select(0, self._number)[0]
        self._each._add(self._tally, self._prepared, part, owner)
        self._number.add_(1)


def captured(work: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """Return a graph that repeats the work."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph


def _some(model: Model, places: list[int] | slice) -> Model:
    """Return some of the stacked models; views for a slice."""
    return Model(*(tree_map(lambda tensor: tensor[places], tree) for tree in (model.params, model.buffers)))
