"""Saved models: safetensors files whose metadata hold everything that using the model needs besides its weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from fedsat.data import Inputs, Schema
from fedsat.errors import DataError, UsageError
from fedsat.experiment.folder import BEST_MODEL, MODELS
from fedsat.experiment.tensors import read_metadata, read_tensors
from fedsat.metrics.thresholds import Thresholds
from fedsat.version import __version__

ModelName = Literal["last", "best", "averaged"]
"""A run's models: that of the last round, the best one, and the running mean of all."""


@dataclass(frozen=True)
class ModelInfo:
    """What a saved model is, and what its inputs and outputs mean."""

    name: str
    """`last`, `best` or `averaged`."""
    round: int
    """The round after which it is the global model, or up to which global models are averaged."""
    method: str
    model: Mapping[str, Any]
    """The network's name and options."""
    inputs: Inputs
    class_names: tuple[str, ...]
    selected_by: str = ""
    """What the best model was chosen by, such as `balanced_accuracy` on validation samples; empty for others."""
    average: float = 0.0
    """The decay of the running mean; 0 if the model is not averaged."""
    run: str = ""
    """A checksum of all settings of the run."""
    data: str = ""
    """A checksum of the data and of their assignment to clients; empty if the data are on nodes."""
    fedsat: str = __version__
    thresholds: Thresholds | None = None
    """The thresholds for wanted sensitivities, if the run had validation samples."""

    def texts(self) -> dict[str, str]:
        """Return the metadata: texts, most of them JSON. Numbers are exact."""
        schema = self.inputs.schema
        return {
            "fedsat": self.fedsat,
            "name": self.name,
            "round": str(self.round),
            "method": self.method,
            "selected_by": self.selected_by,
            "average": repr(self.average),
            "model": json.dumps(dict(self.model)),
            "class_names": json.dumps(self.class_names),
            "input_shape": json.dumps(self.inputs.shape),
            "mean": json.dumps(self.inputs.mean),
            "std": json.dumps(self.inputs.std),
            "pixels": json.dumps(self.inputs.pixels),
            "schema": "" if schema is None else schema.to_json(),
            "run": self.run,
            "data": self.data,
            "thresholds": "" if self.thresholds is None else self.thresholds.to_json(),
        }

    @classmethod
    def of(cls, texts: Mapping[str, str]) -> ModelInfo:
        """Read what `texts` returned; raise a `ValueError` or `KeyError` for anything else."""
        shape, mean, std, names = (
            tuple(json.loads(texts[key])) for key in ("input_shape", "mean", "std", "class_names")
        )
        schema = Schema.from_json(texts["schema"]) if texts["schema"] else None
        thresholds = texts.get("thresholds")  # new in 0.2
        return cls(
            texts["name"],
            int(texts["round"]),
            texts["method"],
            json.loads(texts["model"]),
            Inputs(shape, mean, std, json.loads(texts["pixels"]), schema),
            names,
            texts["selected_by"],
            float(texts["average"]),
            texts["run"],
            texts["data"],
            texts["fedsat"],
            Thresholds.from_json(thresholds) if thresholds else None,
        )


def model_path(folder: Path, name: str) -> Path:
    """Return the file of one of a run's models, named as in `MODELS` or by its file."""
    path = folder / MODELS.get(name, name)
    if not path.is_file():
        saved = ", ".join(sorted(file.name for file in folder.glob("*.safetensors"))) or "no model"
        raise UsageError(f"{folder} has no {path.name}; it has {saved}")
    return path


def served(folder: Path) -> ModelName:
    """Return the model that a run's users get by default: the best one, if the run has chosen one, or the last."""
    path = folder / BEST_MODEL
    with suppress(OSError, ValueError, AttributeError, OverflowError, MemoryError):
        if read_metadata(path).get("selected_by"):
            return "best"
    return "last"


def read_weights(path: Path) -> dict[str, Tensor]:
    """Return a saved model's parameters and buffers by name."""
    try:
        return read_tensors(path, torch.device("cpu"))
    except (OSError, ValueError, TypeError, AttributeError, OverflowError, MemoryError) as error:
        raise UsageError(f"{path} is damaged: {error}") from error


def read_info(path: Path) -> ModelInfo:
    """Return what a saved model is, or say what the file lacks."""
    try:
        texts = read_metadata(path)
        if not texts:
            raise UsageError(
                f"{path} holds weights only: an older version of fedsat wrote it, without the network's options, the "
                "normalisation and the class names; train the run again to predict with it"
            )
        return ModelInfo.of(texts)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, MemoryError, DataError) as error:
        raise UsageError(f"{path}: its metadata cannot be read ({type(error).__name__}: {error})") from error


assert set(get_args(ModelName)) == set(MODELS)
