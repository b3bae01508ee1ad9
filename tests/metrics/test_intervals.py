"""Confidence intervals: those of the binomial distribution, those of resampled samples, and where there are none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedsat.metrics import CHOICES, METRICS, Evaluation
from fedsat.metrics.histograms import add_scores, empty
from fedsat.metrics.intervals import intervals

MIXES = np.array([[1, 0, 0], [1, 1, 2]])
EVALUATION = Evaluation(
    np.array([[80, 10, 10], [5, 15, 0], [4, 4, 2]]), 0.5, np.array([0.8, 0.5]), class_mixes=MIXES
)  # fmt: skip


def sampled(classes: int, samples: int = 400, scale: float = 1.0) -> tuple[Evaluation, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    labels = (torch.rand(samples, generator=generator) < 0.2).long()
    logits = torch.randn(samples, classes, generator=generator, dtype=torch.float64)
    logits[torch.arange(samples), labels] += 1
    logits *= scale
    found, everyone = empty(1, classes, torch.device("cpu")), torch.ones(samples, dtype=torch.bool)
    add_scores(found, logits, labels, torch.zeros_like(labels), everyone)
    confusion = torch.zeros(classes, classes, dtype=torch.int64)
    confusion.index_put_((labels, logits.argmax(1)), torch.tensor(1), accumulate=True)
    return Evaluation(confusion.numpy(), 0.5, histograms=found[0].numpy()), logits, labels


def test_shares_have_the_interval_of_the_binomial_distribution() -> None:
    found = intervals(EVALUATION, METRICS.values(), seed=0)
    p, n = 97 / 130, 130
    wide = 1.96 * np.sqrt(p * (1 - p) / n)
    assert found["accuracy"] == pytest.approx([p - wide, p + wide], abs=0.012)
    assert len(found["recall"]) == 3
    assert found["recall"][0] == pytest.approx([0.8 - 0.078, 0.8 + 0.078], abs=0.015)
    assert found["recall"][2][0] == 0
    assert found["worst_class_recall"][1] < found["recall"][2][1] + 1e-9
    # The first client has only class 0, so its accuracy is that class's recall.
    assert found["client_accuracy_max"] == pytest.approx(found["recall"][0], abs=0.02)
    assert "loss" not in found


def test_the_same_seed_gives_the_same_intervals() -> None:
    first, second, third = (intervals(EVALUATION, METRICS.values(), seed) for seed in (1, 1, 2))
    assert first == second
    assert first != third


def test_two_classes_equal_a_bootstrap_of_samples() -> None:
    evaluation, logits, labels = sampled(2)
    found = intervals(evaluation, [CHOICES[name] for name in ("auroc", "class_auroc", "f1", "brier")], seed=0)
    rng, odds, truth = np.random.default_rng(0), (logits[:, 1] - logits[:, 0]).numpy(), labels.numpy()
    by_hand = []
    for _ in range(1000):
        drawn = rng.integers(0, len(odds), len(odds))
        rank = np.argsort(np.argsort(odds[drawn])) + 1
        hits = truth[drawn] == 1
        by_hand.append((rank[hits].sum() - hits.sum() * (hits.sum() + 1) / 2) / (hits.sum() * (~hits).sum()))
    assert found["auroc"] == pytest.approx(np.percentile(by_hand, [2.5, 97.5]), abs=0.015)
    assert np.allclose(found["class_auroc"], [found["auroc"]] * 2)
    assert found["f1"][0] < CHOICES["f1"](evaluation) < found["f1"][1]


def test_scores_that_are_close_together() -> None:
    """AUROC depends on the order of the scores only, and so does its interval."""
    chosen = [CHOICES["auroc"]]
    wide, narrow = (intervals(sampled(2, scale=scale)[0], chosen, seed=0)["auroc"] for scale in (1, 0.05))
    assert narrow == pytest.approx(wide, abs=0.015)


def test_metrics_without_an_interval() -> None:
    evaluation, _, _ = sampled(3)
    names = ("auroc", "class_auroc", "ece", "worst_class_brier", "client_f1", "worst_client_auroc")
    chosen = [CHOICES[name] for name in names]
    own = replace(CHOICES["f1"], name="own")
    assert {*intervals(evaluation, [*chosen, own], 0)} == {"class_auroc", "ece"}
    assert intervals(replace(evaluation, histograms=None), chosen[:3], 0) == {}
    assert {*intervals(EVALUATION, [CHOICES["client_f1"]], 0)} == {"client_f1"}


def test_clients_counted_on_their_own() -> None:
    confusion = np.array([[[40, 10], [0, 0]], [[0, 0], [30, 10]], [[0, 0], [0, 0]]])
    accuracies = np.array([0.8, 0.25, np.nan])
    evaluation = Evaluation(confusion.sum(0), 0.5, accuracies, client_confusion=confusion)
    found = intervals(evaluation, [*METRICS.values(), CHOICES["client_accuracy"]], 0)
    assert found["client_accuracy"][2] == [None, None]
    assert found["client_accuracy"][0] == pytest.approx([0.69, 0.91], abs=0.03)
    assert found["worst_client_accuracy"] == pytest.approx([0.125, 0.39], abs=0.03)
