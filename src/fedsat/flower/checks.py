"""Checks of what nodes send, before it is used. A failed check raises a `RefusedError` with the reason.

What a node says about its samples when it first joins must not change later: the numbers that it trains on, evaluates
on, and tests on.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedsat.algorithms import Model
from fedsat.flower import masks
from fedsat.flower.messages import NodeInfo, Trained
from fedsat.flower.run_spec import RunSpec
from fedsat.metrics.histograms import BINS
from fedsat.tree import State, Tree

MOST = 2**40
"""More samples than any node has, but small enough for exact sums of counts."""

LARGEST = 1e15
"""Larger than any number in a useful model, but small enough for finite sums and squares in float32."""

AXES, VALUES = 4, 2**26
"""The largest numbers of axes and values that a sample may have."""


class RefusedError(Exception):
    """A reply is not used; the message is the reason."""


def check_info(info: NodeInfo, run: RunSpec, clients: int) -> None:
    """Refuse an introduction that no node with samples can send."""
    if not (1 <= len(info.shape) <= AXES and min(info.shape) >= 1 and math.prod(info.shape) <= VALUES):
        raise RefusedError(f"shape: {list(info.shape[: AXES + 1])} is not that of a sample")
    if not -1 <= info.number < clients:
        raise RefusedError(f"it is partition {info.number}; the run has {clients} clients")
    if not (1 <= info.samples <= MOST and 0 <= info.validation <= MOST and 0 <= info.tested <= MOST):
        raise RefusedError(f"samples: {info.samples}, {info.validation} and {info.tested} are not possible numbers")
    if bool(info.validation) and not run.settings["validation"]:
        raise RefusedError(f"validation: it sets {info.validation} samples aside, but the run has no validation")
    if bool(info.tested) != run.held_out:
        raise RefusedError(f"tested: it holds out {info.tested} samples")
    held = info.validation if run.settings["validation"] else info.samples
    if not 0 <= info.judged <= held:
        raise RefusedError(f"judged: it reports about {info.judged} of {held} samples")
    if not masks.usable(info.key):
        raise RefusedError("key: it is not a public key with which secrets can be agreed")
    if run.held_out:
        check_moments(info.moments, channels=info.shape[0])
    if run.settings["client_accuracy"] == "test-split":
        check_class_counts(info.class_counts, len(run.class_names), info.samples + info.validation)


def check_same(info: NodeInfo, first: NodeInfo) -> None:
    """Refuse a client whose samples have changed since it first joined."""
    for name in ("samples", "validation", "tested", "judged"):
        now, before = getattr(info, name), getattr(first, name)
        if now != before:
            raise RefusedError(f"{name}: {now}, but {before} when the client first joined")
    if info.class_counts and (info.class_counts["class_counts"] != first.class_counts["class_counts"]).any():
        raise RefusedError("class counts: not the same as when the client first joined")


def check_update(reply: Trained, model: Model, uploads: State, samples: int, steps: int) -> None:
    """Refuse an update that differs in shape from the model and the method's uploads, or is not finite.

    It must come from as many samples as the node greeted with, and as many steps as these take.
    """
    check_tree("parameters", reply.model.params, model.params)
    check_tree("buffers", reply.model.buffers, model.buffers)
    if reply.uploads.keys() != uploads.keys():
        raise RefusedError(f"it uploads {_names(reply.uploads)}, but the method expects {_names(uploads)}")
    for name, tree in uploads.items():
        check_tree(name, reply.uploads[name], tree)
    if (reply.steps, reply.samples) != (steps, samples):
        raise RefusedError(
            f"it reports {reply.steps} steps on {reply.samples} samples, but was asked for {steps} on its {samples}"
        )
    if not abs(reply.loss) <= LARGEST:
        raise RefusedError("loss: it is not finite")


def check_tree(what: str, sent: Tree, wanted: Tree) -> None:
    """Refuse unknown or missing names, wrong shapes or types, and values that are not finite."""
    if sent.keys() != wanted.keys():
        wrong = sorted(sent.keys() ^ wanted.keys())[0]
        raise RefusedError(f"{what}: {wrong[:40]!r} is {'unknown' if wrong in sent else 'missing'}")
    for name, tensor in sent.items():
        if tensor.shape != wanted[name].shape or tensor.dtype != wanted[name].dtype:
            raise RefusedError(
                f"{what}: {name!r} is {tensor.dtype} {list(tensor.shape)}, "
                f"not {wanted[name].dtype} {list(wanted[name].shape)}"
            )
        if not bool(torch.isfinite(tensor).all()):
            raise RefusedError(f"{what}: {name!r} is not finite")
        if tensor.numel() and max(abs(float(extreme)) for extreme in tensor.aminmax()) > LARGEST:
            raise RefusedError(f"{what}: {name!r} has a value above {LARGEST:g}")


def check_integers(what: str, sent: Tensor | None, *shape: int) -> Tensor:
    """Return integers of this shape; refuse anything else."""
    if sent is None:
        raise RefusedError(f"{what}: missing")
    if sent.shape != shape or sent.dtype != torch.int64:
        raise RefusedError(f"{what}: {sent.dtype} {list(sent.shape)}, not integers {list(shape)}")
    return sent


def check_counts(counts: Tensor, samples: int) -> Tensor:
    """Return a worker's counts [3, m] (Z, TP, T) on `samples` samples; refuse counts that no evaluation can produce."""
    predicted, correct, labels = counts
    if bool(((counts < 0) | (counts > MOST)).any()):
        raise RefusedError("counts: a value is negative or too large")
    if bool((correct > torch.minimum(predicted, labels)).any()):
        raise RefusedError("counts: more correct predictions of a class than predictions or samples of it")
    if int(predicted.sum()) != int(labels.sum()):
        raise RefusedError(f"counts: {int(predicted.sum())} predictions for {int(labels.sum())} samples")
    if int(labels.sum()) != samples:
        raise RefusedError(f"counts: {int(labels.sum())} samples, but it has {samples}")
    return counts


def check_confusion(
    confusion: Tensor | None, models: int, classes: int, samples: int, *, fewer: bool = False
) -> Tensor:
    """Return a node's confusion matrices [models, m, m]; refuse them unless all count the same `samples` samples.

    If `fewer`, the node may leave some of them out.
    """
    if confusion is None or confusion.shape != (models, classes, classes) or confusion.dtype != torch.int64:
        raise RefusedError(f"confusion: not integers [{models}, {classes}, {classes}]")
    if bool(((confusion < 0) | (confusion > MOST)).any()):
        raise RefusedError("confusion: a value is negative or too large")
    if bool((confusion.sum(-1) != confusion[0].sum(-1)).any()):
        raise RefusedError("confusion: the models were evaluated on different samples")
    counted = int(confusion[0].sum())
    if counted != samples and not (fewer and counted < samples):
        raise RefusedError(f"confusion: {counted} samples, but it evaluates on {samples}")
    return confusion


def check_histograms(sent: Tensor | None, confusion: Tensor) -> Tensor:
    """Return a node's histograms of scores [models, m + 1, BINS, 2]; refuse others than of the samples in `confusion`.

    Of each class, they count as many samples, and as many correct predictions, as the confusion matrices.
    """
    models, classes, _ = confusion.shape
    found = check_integers("histograms", sent, models, classes + 1, BINS, 2)
    if bool(((found < 0) | (found > MOST)).any()):
        raise RefusedError("histograms: a value is negative or too large")
    right = confusion.diagonal(dim1=1, dim2=2).sum(-1, keepdim=True)
    hits = torch.cat([confusion.sum(-1), right], -1)
    wanted = torch.stack([confusion.sum((1, 2))[:, None] - hits, hits], -1)
    if bool((found.sum(2) != wanted).any()):
        raise RefusedError("histograms: they do not count the samples of the confusion matrix")
    return found


def check_losses(losses: Tensor | None, models: int) -> Tensor:
    """Return a node's mean loss with each model."""
    if losses is None or losses.shape != (models,) or losses.dtype != torch.float64:
        raise RefusedError(f"loss: not {models} numbers")
    if bool((losses.abs() > LARGEST).any()):  # NaN is the loss of a model that has diverged
        raise RefusedError(f"loss: above {LARGEST:g}")
    return losses


def check_accuracies(accuracies: Tensor | None, models: int) -> Tensor:
    """Return a node's accuracy with each model; NaN means that the test set contains none of its classes."""
    if accuracies is None or accuracies.shape != (models,) or accuracies.dtype != torch.float64:
        raise RefusedError(f"accuracy: not {models} numbers")
    if bool(((accuracies < 0) | (accuracies > 1)).any()) or bool(accuracies.isinf().any()):
        raise RefusedError("accuracy: not between 0 and 1")
    return accuracies


def check_moments(moments: Tree, channels: int) -> None:
    """Refuse moments that no samples can have."""
    wanted = torch.zeros(channels, dtype=torch.float64)
    check_tree("moments", moments, {"mean": wanted, "variance": wanted})
    if bool((moments["variance"] < 0).any()):
        raise RefusedError("moments: a variance is negative")


def check_class_counts(class_counts: Tree, classes: int, samples: int) -> None:
    """Refuse class counts that at most `samples` samples cannot have; a node may leave out rare classes."""
    check_tree("class counts", class_counts, {"class_counts": torch.zeros(classes, dtype=torch.int64)})
    counts = class_counts["class_counts"]
    if bool(((counts < 0) | (counts > MOST)).any()) or int(counts.sum()) > samples:
        raise RefusedError(f"class counts: a value is negative, or they are those of more than {samples} samples")


def _names(state: State) -> str:
    return ", ".join(name[:40] for name in list(state)[:5]) or "nothing"
