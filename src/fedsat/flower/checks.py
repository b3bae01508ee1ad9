"""Checks of what nodes send, before it is used. A failed check raises a `RefusedError` with the reason."""

from __future__ import annotations

import torch
from torch import Tensor

from fedsat.algorithms import Model
from fedsat.flower.messages import Trained
from fedsat.tree import State, Tree

MOST = 2**40
"""More samples than any node has, but small enough for exact sums of counts."""


class RefusedError(Exception):
    """A reply is not used; the message is the reason."""


def check_update(reply: Trained, model: Model, uploads: State) -> None:
    """Refuse an update that is not finite, or differs in shape from the model and the method's uploads."""
    check_tree("parameters", reply.model.params, model.params)
    check_tree("buffers", reply.model.buffers, model.buffers)
    if reply.uploads.keys() != uploads.keys():
        raise RefusedError(f"it uploads {_names(reply.uploads)}, but the method expects {_names(uploads)}")
    for name, tree in uploads.items():
        check_tree(name, reply.uploads[name], tree)
    if reply.steps < 1 or reply.samples < 1:
        raise RefusedError(f"it reports {reply.steps} steps on {reply.samples} samples")


def check_tree(what: str, sent: Tree, wanted: Tree) -> None:
    """Refuse unknown or missing names, wrong shapes or types, and values that are not finite."""
    if sent.keys() != wanted.keys():
        wrong = sorted(sent.keys() ^ wanted.keys())[0]
        raise RefusedError(f"{what}: {wrong!r} is {'unknown' if wrong in sent else 'missing'}")
    for name, tensor in sent.items():
        if tensor.shape != wanted[name].shape or tensor.dtype != wanted[name].dtype:
            raise RefusedError(
                f"{what}: {name!r} is {tensor.dtype} {list(tensor.shape)}, "
                f"not {wanted[name].dtype} {list(wanted[name].shape)}"
            )
        if not bool(torch.isfinite(tensor).all()):
            raise RefusedError(f"{what}: {name!r} is not finite")


def check_counts(counts: Tensor | None, classes: int, *, may_be_empty: bool) -> Tensor:
    """Return a worker's counts [3, m] (Z, TP, T); refuse counts that no evaluation can produce."""
    if counts is None:
        raise RefusedError("counts: missing")
    if counts.shape != (3, classes) or counts.dtype != torch.int64:
        raise RefusedError(f"counts: {counts.dtype} {list(counts.shape)}, not integers [3, {classes}]")
    predicted, correct, labels = counts
    if bool(((counts < 0) | (counts > MOST)).any()):
        raise RefusedError("counts: a value is negative or too large")
    if bool((correct > torch.minimum(predicted, labels)).any()):
        raise RefusedError("counts: more correct predictions of a class than predictions or samples of it")
    if int(predicted.sum()) != int(labels.sum()):
        raise RefusedError(f"counts: {int(predicted.sum())} predictions for {int(labels.sum())} samples")
    if int(labels.sum()) == 0 and not may_be_empty:
        raise RefusedError("counts: no samples")
    return counts


def check_confusion(confusion: Tensor | None, models: int, classes: int) -> Tensor:
    """Return a node's confusion matrices [models, m, m]; refuse them unless all count the same samples."""
    if confusion is None or confusion.shape != (models, classes, classes) or confusion.dtype != torch.int64:
        raise RefusedError(f"confusion: not integers [{models}, {classes}, {classes}]")
    if bool(((confusion < 0) | (confusion > MOST)).any()) or int(confusion[0].sum()) == 0:
        raise RefusedError("confusion: a value is negative or too large, or there are no samples")
    if bool((confusion.sum(-1) != confusion[0].sum(-1)).any()):
        raise RefusedError("confusion: the models were evaluated on different samples")
    return confusion


def check_accuracies(accuracies: Tensor | None, models: int) -> Tensor:
    """Return a node's accuracy with each model; NaN means that the test set contains none of its classes."""
    if accuracies is None or accuracies.shape != (models,) or accuracies.dtype != torch.float64:
        raise RefusedError(f"accuracy: not {models} numbers")
    if bool(((accuracies < 0) | (accuracies > 1)).any()) or bool(accuracies.isinf().any()):
        raise RefusedError("accuracy: not between 0 and 1")
    return accuracies


def check_moments(moments: Tree, channels: int) -> None:
    """Refuse moments that no samples can have."""
    wanted = {"samples": torch.tensor(0), "mean": torch.zeros(channels, dtype=torch.float64)}
    check_tree("moments", moments, {**wanted, "variance": wanted["mean"]})
    if not 1 <= int(moments["samples"]) <= MOST or bool((moments["variance"] < 0).any()):
        raise RefusedError("moments: a variance is negative, or there are no samples")


def check_class_counts(class_counts: Tree, classes: int) -> None:
    """Refuse class counts that no samples can have."""
    check_tree("class counts", class_counts, {"class_counts": torch.zeros(classes, dtype=torch.int64)})
    counts = class_counts["class_counts"]
    if bool(((counts < 0) | (counts > MOST)).any()) or not bool(counts.any()):
        raise RefusedError("class counts: a value is negative or too large, or there are no samples")


def _names(state: State) -> str:
    return ", ".join(state) or "nothing"
