"""Predictions of a saved model: samples are read and normalised as in training."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn
from torch.nn import functional

from fedsat.data.inputs import is_frame
from fedsat.data.unseen import class_numbers
from fedsat.data.values import require_pandas
from fedsat.engine.capacity import evaluation_batch
from fedsat.engine.examples import scaling
from fedsat.errors import DataError, FedsatError, UsageError
from fedsat.experiment.saved import ModelInfo, read_info, read_weights
from fedsat.metrics import Evaluation, Floats, confusion_counts, histograms
from fedsat.metrics.thresholds import Sensitivity, decide
from fedsat.models import build_model

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]


@dataclass(frozen=True, eq=False, repr=False)
class Prediction:
    """The probability of each class for each sample, and the predicted classes."""

    probabilities: NDArray[np.float64]
    """[n, m]."""
    class_names: tuple[str, ...]
    thresholds: Floats | None = None
    """The threshold of each class, [m], NaN for a class without one; None if none was asked for."""

    def __repr__(self) -> str:
        return f"<Prediction of {len(self.probabilities):,} samples, {len(self.class_names)} classes>"

    @property
    def classes(self) -> NDArray[np.int64]:
        """The predicted class of each sample, as number: the most probable one, or as `decide` says."""
        return self._decided[0]

    @property
    def labels(self) -> NDArray[np.str_]:
        """The names of the predicted classes."""
        return np.array(self.class_names)[self.classes]

    @property
    def decided_by(self) -> NDArray[np.str_]:
        """What decided about each sample: `threshold`, or `probability`."""
        return np.where(self._decided[1], "threshold", "probability")

    @cached_property
    def _decided(self) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        given = np.full(len(self.class_names), np.nan) if self.thresholds is None else self.thresholds
        return decide(self.probabilities, given)

    @property
    def columns(self) -> dict[str, NDArray[Any]]:
        """The columns of a table of predictions: `predicted`, `decided_by` if there are thresholds, and p(class)."""
        decided = {} if self.thresholds is None else {"decided_by": self.decided_by}
        shares = {f"p({name})": self.probabilities[:, place] for place, name in enumerate(self.class_names)}
        return {"predicted": self.labels, **decided, **shares}

    def to_pandas(self, index: Any = None) -> pd.DataFrame:
        """Return a data frame of `columns`."""
        return require_pandas().DataFrame(self.columns, index=index)


class Predictor:
    """A saved model that is ready to use."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.info: ModelInfo = read_info(path)
        self.network = self._network()
        self._dtype = next(self.network.parameters()).dtype

    def _network(self) -> nn.Module:
        info, weights = self.info, read_weights(self.path)
        try:
            module = build_model(dict(info.model), info.inputs.shape, len(info.class_names), seed=0)
            self._batch = evaluation_batch(module, info.inputs.shape, torch.device("cpu"))
            module.to(next(tensor.dtype for tensor in weights.values() if tensor.is_floating_point()))
            module.load_state_dict(weights)
        except (FedsatError, RuntimeError, KeyError) as error:
            name, why = info.model.get("name"), " ".join(str(error).split())
            raise FedsatError(f"{self.path}: the network {name!r} cannot be built: {why}") from error
        return module.eval()

    def predict(self, x: Any, *, sensitivity: Sensitivity | None = None) -> Prediction:
        """Return the prediction for samples: a data frame for a table's columns, otherwise an array [n, …].

        Pixels are uint8, or floats from 0 to 1. Other values are those of the training data. They are normalised here.
        With a wanted `sensitivity`, such as `{"ill": 0.9}`, thresholds that the validation samples chose decide.
        """
        return self._prediction(self.logits(x), sensitivity)

    def evaluate(self, x: Any, y: ArrayLike | None = None, *, sensitivity: Sensitivity | None = None) -> Evaluation:
        """Evaluate the model on samples of known classes: `y` has their names or numbers.

        Without `y`, they are in the label column of the data frame. `sensitivity` is that of `predict`.
        """
        names, known = self.info.class_names, self._labels(x, y)
        logits, labels = self.logits(x), torch.from_numpy(known)
        if len(labels) != len(logits):
            raise DataError(f"there are {len(logits):,} samples but {len(labels):,} labels")
        prediction = self._prediction(logits, sensitivity)
        confusion = confusion_counts(labels[None], torch.from_numpy(prediction.classes)[None], len(names))[0]
        scores, everyone = histograms.empty(1, len(names), labels.device), torch.ones(len(labels), dtype=torch.bool)
        histograms.add_scores(scores, logits, labels, torch.zeros_like(labels), everyone)
        return Evaluation(
            confusion.numpy(),
            float(functional.cross_entropy(logits, labels)),
            predict=lambda: (prediction.probabilities, known),
            histograms=scores[0].numpy(),
        )

    def thresholds(self, sensitivity: Sensitivity) -> Floats:
        """Return the threshold of each class for a given sensitivity, [m]; NaN for a class without one."""
        if self.info.thresholds is None:
            raise UsageError(
                f"{self.path} has no thresholds: they need a completed run with validation samples, such as "
                "--validation 0.2, on this machine"
            )
        return self.info.thresholds.at(sensitivity, self.info.class_names)

    def _prediction(self, logits: Tensor, sensitivity: Sensitivity | None) -> Prediction:
        thresholds = None if sensitivity is None else self.thresholds(sensitivity)
        return Prediction(logits.softmax(-1).numpy(), self.info.class_names, thresholds)

    def _labels(self, x: Any, y: ArrayLike | None) -> NDArray[np.int64]:
        schema = self.info.inputs.schema
        if y is not None:
            return class_numbers(y, self.info.class_names, "y")
        if schema is None or not is_frame(x):
            raise UsageError("give the classes of the samples: y")
        return schema.labels(x)

    def logits(self, x: Any) -> Tensor:
        """Return the network's outputs for samples, [n, m]."""
        return self.outputs(torch.from_numpy(self.info.inputs.read(x)))

    def outputs(self, samples: Tensor) -> Tensor:
        """Return the network's outputs for samples as `Inputs.read` returns them, [n, m]."""
        with torch.inference_mode():
            return torch.cat([self._outputs(part) for part in torch.split(samples, self._batch)])

    def _outputs(self, samples: Tensor) -> Tensor:
        factor, shift = scaling(self.info.inputs.mean, self.info.inputs.std, samples, self._dtype)
        logits: Tensor = self.network(samples.to(self._dtype) * factor + shift)
        return logits.to(torch.float64)
