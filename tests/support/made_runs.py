"""Artificial run folders for tests, of any size and with known numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedsat.experiment import Config
from fedsat.experiment.settings import override
from fedsat.experiment.store import StoredRun
from fedsat.metrics import confusion_counts
from fedsat.metrics.histograms import add_scores, empty


def make_run(
    folder: Path,
    *,
    rounds: int = 12,
    classes: int = 10,
    accuracy: float = 0.8,
    clients: int = 30,
    names: list[str] | None = None,
    status: str = "completed",
    scores: bool = False,
    **settings: Any,
) -> StoredRun:
    """Write a run whose accuracy rises to `accuracy` in four rounds and stays there."""
    given = {"clients": clients, "per_round": 5, "rounds": rounds, **settings}
    config = Config.of(override({}, list(given.items())))
    rng = np.random.default_rng(config.seed)
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(config.to_toml(), encoding="utf-8")
    lines = []
    for number in range(1, rounds + 1):
        reached = accuracy * min(1.0, number / 4)
        recall = np.clip(reached + np.linspace(-0.1, 0.1, classes), 0, 1)
        lines.append(
            {
                "round": number,
                "clients": list(range(5)),
                "weights": rng.dirichlet(np.full(5, 20)).round(6).tolist(),
                "effective_clients": 4.5,
                "bytes_down": 1_000_000,
                "bytes_up": 500_000,
                "priority_class": int(recall.argmin()),
                "test_accuracy": reached,
                "recall": recall.tolist(),
                "worst_class": 0,
                "worst_recall": float(recall[0]),
                "client_accuracy": {"min": float(recall[0]), "p10": 0.5, "median": reached, "max": 0.99},
                "seconds": {"train": 0.25},
            }
        )
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    summary = {
        "status": status,
        "method": config.method,
        "confusion": rng.integers(1, 50, (classes, classes)).tolist(),
        "client_accuracies": rng.uniform(0.3, 1, clients).round(4).tolist(),
        "class_names": names or [str(number) for number in range(classes)],
        "made_with": {"fedsat": "1", "torch": "2", "device": "cpu: test", "command": "fedsat run"},
    }
    if scores:
        labels, logits = (
            torch.arange(20 * classes) % classes,
            torch.from_numpy(rng.normal(size=(20 * classes, classes))),
        )
        logits[torch.arange(len(labels)), labels] += 2 * accuracy
        found, everyone = empty(1, classes, labels.device), torch.ones(len(labels), dtype=torch.bool)
        add_scores(found, logits, labels, torch.zeros_like(labels), everyone)
        counted = confusion_counts(labels[None], logits.argmax(1)[None], classes)[0].numpy()
        summary["confusion"] = counted.tolist()
        np.savez_compressed(folder / "counts.npz", confusion=counted, histograms=found[0].numpy())
    (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    return StoredRun.read(folder)
