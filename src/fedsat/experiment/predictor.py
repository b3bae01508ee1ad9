"""Predictions of a saved model: samples are read and normalised as in training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedsat.data.values import require_pandas
from fedsat.engine.capacity import evaluation_batch
from fedsat.engine.examples import scaling
from fedsat.errors import FedsatError
from fedsat.experiment.saved import ModelInfo, read_info, read_weights
from fedsat.models import build_model

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]


@dataclass(frozen=True, eq=False, repr=False)
class Prediction:
    """The probability of each class for each sample, and the predicted classes."""

    probabilities: NDArray[np.float64]
    """[n, m]."""
    class_names: tuple[str, ...]

    def __repr__(self) -> str:
        return f"<Prediction of {len(self.probabilities):,} samples, {len(self.class_names)} classes>"

    @property
    def classes(self) -> NDArray[np.int64]:
        """The predicted class of each sample, as number: the one with the largest probability."""
        return np.asarray(self.probabilities.argmax(1), np.int64)

    @property
    def labels(self) -> NDArray[np.str_]:
        """The names of the predicted classes."""
        return np.array(self.class_names)[self.classes]

    def to_pandas(self, index: Any = None) -> pd.DataFrame:
        """Return a data frame with the column `predicted` and one column per class with its probability."""
        pd = require_pandas()
        columns = {f"p({name})": self.probabilities[:, place] for place, name in enumerate(self.class_names)}
        return pd.DataFrame({"predicted": self.labels, **columns}, index=index)


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

    def predict(self, x: Any) -> Prediction:
        """Return the prediction for samples: a data frame for a table's columns, otherwise an array [n, …].

        Pixels are uint8, or floats from 0 to 1. Other values are those of the training data. They are normalised here.
        """
        samples = torch.from_numpy(self.info.inputs.read(x))
        with torch.inference_mode():
            scores = [self._scores(part) for part in torch.split(samples, self._batch)]
        return Prediction(torch.cat(scores).numpy(), self.info.class_names)

    def _scores(self, samples: Tensor) -> Tensor:
        factor, shift = scaling(self.info.inputs.mean, self.info.inputs.std, samples, self._dtype)
        logits: Tensor = self.network(samples.to(self._dtype) * factor + shift)
        return logits.to(torch.float64).softmax(-1)
