"""What is recorded of a round, and what a run's rounds come to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fedsat.metrics import Evaluation, Floats, spread
from fedsat.rounds import RoundResult

LAST = 10
"""Rounds whose mean is reported beside the last and the best."""


def round_line(played: RoundResult) -> dict[str, Any]:
    """What is recorded of every round, evaluated or not."""
    client_weights, traffic = played.client_weights, played.traffic
    line: dict[str, Any] = {
        "round": played.number,
        "train_loss": float(played.losses.mean()) if len(played.losses) else None,
        "clients": played.clients.tolist(),
        "weights": client_weights.weights.tolist(),
        "effective_clients": client_weights.effective_clients,
        "bytes_down": traffic.down,
        "bytes_up": traffic.up,
        "bytes_workers": traffic.workers,
    }
    if client_weights.class_scores is not None and client_weights.client_scores is not None:
        line["priority_class"] = int(client_weights.class_scores.argmax())
        line["class_scores"] = client_weights.class_scores.tolist()
        line["client_scores"] = client_weights.client_scores.tolist()
    misfortunes = {
        "missing": list(played.missing),
        "refused": {str(client): why for client, why in played.refused.items()},
        "refused_workers": {str(worker): why for worker, why in played.refused_workers.items()},
    }
    return line | {what: nodes for what, nodes in misfortunes.items() if nodes}


def evaluation_line(evaluation: Evaluation, client_accuracy: Floats) -> dict[str, Any]:
    """What an evaluated round adds; a class that the test set lacks has no recall (null)."""
    recall = evaluation.recall
    return {
        "test_accuracy": evaluation.accuracy,
        "balanced_accuracy": evaluation.balanced_accuracy,
        "test_loss": evaluation.loss if np.isfinite(evaluation.loss) else None,
        "recall": known(recall),
        "worst_class": evaluation.worst_class,
        "worst_recall": float(recall[evaluation.worst_class]),
        "client_accuracy": spread(client_accuracy),
    }


def known(values: Floats) -> list[float | None]:
    """Numbers as JSON can hold them: null for those that are not defined."""
    return [None if np.isnan(value) else float(value) for value in values]


def summarise(metrics: list[dict[str, Any]]) -> dict[str, Any]:
    """The numbers to quote: the last round's, the mean of the last ten rounds', and the best round's.

    `models` has the same for the models that a method reports besides the global one.
    """
    evaluated = [line for line in metrics if "test_accuracy" in line]
    summary: dict[str, Any] = {
        "rounds": len(metrics),
        "bytes_down": sum(line["bytes_down"] for line in metrics),
        "bytes_up": sum(line["bytes_up"] for line in metrics),
        "seconds": sum(sum(line["seconds"].values()) for line in metrics),
    }
    for what in ("missing", "refused", "refused_workers"):
        if count := sum(len(line.get(what, ())) for line in metrics):
            summary[what] = count
    if not evaluated:
        return summary
    summary |= quoted(evaluated, len(metrics))
    others = {
        name: quoted([{"round": line["round"], **line["models"][name]} for line in evaluated], len(metrics))
        for name in evaluated[-1].get("models", {})
    }
    return {**summary, "models": others} if others else summary


def quoted(evaluated: Sequence[Mapping[str, Any]], rounds: int) -> dict[str, Any]:
    """The numbers to quote of one model, from the evaluated rounds among `rounds` rounds."""
    last, best = evaluated[-1], max(evaluated, key=lambda line: float(line["test_accuracy"]))
    final = [line for line in evaluated if line["round"] > rounds - LAST] or [last]

    def mean(value: Callable[[Mapping[str, Any]], float]) -> float:
        return float(np.mean([value(line) for line in final]))

    return {
        "test_accuracy": last["test_accuracy"],
        "worst_class": last["worst_class"],
        "worst_recall": last["worst_recall"],
        "lowest_client": last["client_accuracy"]["min"],
        "last_ten": {
            "test_accuracy": mean(lambda line: float(line["test_accuracy"])),
            "worst_recall": mean(lambda line: float(line["worst_recall"])),
            "lowest_client": mean(lambda line: float(line["client_accuracy"]["min"])),
        },
        "best": {"test_accuracy": best["test_accuracy"], "round": best["round"]},
    }
