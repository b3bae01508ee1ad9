"""Histograms of scores: as accurate as the scores, exact where probabilities are almost 0 or 1, and additive."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fedsat.metrics import Counts, measures
from fedsat.metrics.histograms import BINS, EDGE, add_scores, bin_of, empty, log_odds, merged, middles

CPU = torch.device("cpu")


def histograms(logits: torch.Tensor, labels: torch.Tensor, groups: torch.Tensor | None = None) -> torch.Tensor:
    owner = torch.zeros_like(labels) if groups is None else groups
    found = empty(int(owner.max()) + 1, logits.shape[1], CPU)
    add_scores(found, logits, labels, owner, torch.ones(len(labels), dtype=torch.bool))
    return found


def exact_auroc(scores: NDArray[np.float64], hits: NDArray[np.bool_]) -> float:
    """By definition: pairs in the right order, ties count one half."""
    good, bad = scores[hits][:, None], scores[~hits][None, :]
    return float((good > bad).mean() + (good == bad).mean() / 2)


def test_log_odds_keep_their_precision() -> None:
    found = log_odds(torch.tensor([[60.0, 0.0, 0.0], [0.0, 0.0, 0.0]]))
    assert found[0, 0].item() == pytest.approx(60 - np.log(2))
    assert found[0, 1].item() == pytest.approx(-60, abs=1e-6)
    assert found[1].tolist() == pytest.approx([-np.log(2)] * 3)
    assert torch.isfinite(middles_of(log_odds(torch.tensor([[2000.0, 0.0], [float("nan"), 1.0]])))).all()


def middles_of(odds: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(middles())[bin_of(odds)]


def test_bins_are_narrow_and_ordered() -> None:
    p = torch.linspace(0.001, 0.999, 999, dtype=torch.float64)
    assert (middles_of((p / (1 - p)).log()) - p).abs().max() < 0.0016
    assert (np.diff(middles()) >= 0).all()
    assert bin_of(torch.tensor([-EDGE, EDGE, -1e9, 1e9])).tolist() == [0, BINS - 1, 0, BINS - 1]
    assert bin_of(torch.tensor([-60.0])) < bin_of(torch.tensor([-59.0])) < bin_of(torch.tensor([-58.5]))


@pytest.mark.parametrize(("rare", "spread", "shift"), [(20, 1.0, -8.0), (50, 4.0, 0.0), (200, 8.0, -12.0)])
def test_auroc_equals_that_of_the_scores(rare: int, spread: float, shift: float) -> None:
    """A rare class with small probabilities: `shift` is the mean of its log-odds."""
    rng = np.random.default_rng(rare)
    labels = torch.from_numpy(np.r_[np.ones(rare, int), np.zeros(5000, int)])
    odds = torch.from_numpy(rng.normal(shift, spread, len(labels))) + labels * spread
    logits = torch.stack([torch.zeros_like(odds), odds], 1)
    counts = Counts(np.empty((2, 2)), histograms(logits, labels)[0].numpy())
    exact = exact_auroc(odds.numpy(), labels.numpy() == 1)
    assert 0.6 < exact < 0.9
    assert measures.auroc(counts) == pytest.approx([exact, exact], abs=1e-3)


def test_groups_batches_and_padding_add_up() -> None:
    generator = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(40, 3, generator=generator), torch.randint(0, 3, (40,), generator=generator)
    whole, apart = histograms(logits, labels), histograms(logits, labels, torch.arange(40) % 4)
    assert torch.equal(whole[0], apart.sum(0))
    found, counted = empty(1, 3, CPU), torch.arange(40) < 30
    for part in torch.arange(40).split(7):
        add_scores(found, logits[part], labels[part], torch.zeros_like(part), counted[part])
    assert torch.equal(found, histograms(logits[:30], labels[:30]))
    assert found[0, :3, :, 1].sum(-1).tolist() == labels[:30].bincount(minlength=3).tolist()
    assert int(found[0, 3, :, 1].sum()) == int((logits[:30].argmax(-1) == labels[:30]).sum())
    assert merged(found.numpy(), 512).sum() == found.sum()
