"""Exported models: one file with the network and its preprocessing, for programs without fedsat.

The graph takes samples as they are stored (pixels as uint8, rows of a table as numbers), and returns probabilities.
"""

from __future__ import annotations

import copy
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedsat.data import Inputs, Schema
from fedsat.data.schema import READERS
from fedsat.engine.examples import scaling
from fedsat.errors import FedsatError, UsageError
from fedsat.experiment.folder import write_whole
from fedsat.seeding import generator

if TYPE_CHECKING:
    from fedsat.experiment.predictor import Predictor

Target = Literal["onnx", "torch"]
FILES: dict[Target, str] = {"onnx": "model.onnx", "torch": "model.pt2"}
"""Default names of the files."""
EXTRA = "metadata.json"
"""The file with the metadata in a `torch.export` archive."""
OUTPUTS = "probabilities: float32 [n, classes], in the order of class_names"
CHECKED = 32
"""Random samples whose probabilities must be the same in the exported file."""
TOLERANCE = 1e-4
"""Largest allowed difference of a probability: exported graphs compute in float32, in a different order."""

Samples = NDArray[Any]
Exported = Callable[[Samples], Samples]
"""An exported file as a function: from samples to probabilities."""


def export(predictor: Predictor, path: Path, to: Target = "onnx") -> Path:
    """Write a model with its preprocessing to a file, and check that it computes the same probabilities.

    `onnx` needs the extra `fedsat[onnx]`. `torch` is an archive of `torch.export`. Both hold the metadata of the saved
    model, and need only onnxruntime or torch to be used. A file that is already there is replaced after the check.
    """
    inputs = predictor.info.inputs
    texts = {**predictor.info.texts(), "input": describe(inputs), "output": OUTPUTS}
    graph = Standalone(predictor.network, inputs).eval()
    samples = example_samples(inputs)
    made_by = _onnx_file if to == "onnx" else _torch_file
    with _quiet():
        content, exported = made_by(_traced(graph, torch.from_numpy(samples)), texts)
        found = exported(samples)
    read = samples if inputs.schema is None else inputs.schema.inputs(samples)
    expected = predictor.outputs(torch.from_numpy(read)).softmax(-1).numpy()
    off = float(np.abs(found - expected).max())
    if not off <= TOLERANCE:  # also NaN
        raise FedsatError(f"the exported model's probabilities differ by {off:.2g} from torch's; {path} is not written")
    try:
        write_whole(path, content)
    except OSError as error:
        raise UsageError(f"cannot write {path} ({error.strerror or error})") from error
    return path


def describe(inputs: Inputs) -> str:
    """Describe in one line what the exported graph takes."""
    if inputs.schema is not None:
        columns = ", ".join(column.name for column in inputs.schema.columns)
        return f"x: float64 [n, {len(inputs.schema.columns)}], one number for each column (see schema): {columns}"
    shape = ", ".join(map(str, inputs.shape))
    if inputs.pixels:
        return f"x: uint8 [n, {shape}], pixels from 0 to 255"
    scale = "on the scale of the training data" if inputs.pixels is False else "on that scale; pixels from 0 to 1"
    return f"x: float32 [n, {shape}], {scale}"


class Standalone(nn.Module):
    """A network with its preprocessing: from samples to probabilities."""

    def __init__(self, network: nn.Module, inputs: Inputs) -> None:
        super().__init__()
        self.preprocessing = Scaled(inputs) if inputs.schema is None else Rows(inputs.schema)
        self.network = copy.deepcopy(network).float()

    def forward(self, x: Tensor) -> Tensor:
        """Return the probability of each class."""
        probabilities: Tensor = self.network(self.preprocessing(x)).softmax(-1)
        return probabilities


class Scaled(nn.Module):
    """Normalises images and arrays."""

    factor: Tensor
    shift: Tensor

    def __init__(self, inputs: Inputs) -> None:
        super().__init__()
        sample = torch.from_numpy(example_samples(inputs))
        factor, shift = scaling(inputs.mean, inputs.std, sample, torch.float32)
        self.register_buffer("factor", factor)
        self.register_buffer("shift", shift)

    def forward(self, x: Tensor) -> Tensor:
        """Return the network's inputs."""
        return x.float() * self.factor + self.shift


class Rows(nn.Module):
    """The inputs of a table's rows, as `Schema.inputs` computes them, from one number for each column.

    Every input is of one of three kinds: a normalised number, 1 for one category, or 1 where the value is missing.
    """

    def __init__(self, schema: Schema) -> None:
        super().__init__()
        plan: dict[str, list[float]] = {name: [] for name in ("place", "fill", "mean", "deviation", "code", "kind")}
        for place, column in enumerate(schema.columns):
            number = column.kind in READERS
            own = [(0.0 if number else 1.0, code) for code in range(column.width - column.missing)]
            for kind, code in [*own, *[(2.0, 0)] * column.missing]:
                centre, scale = (column.mean, column.deviation) if number else (0.0, 1.0)
                for name, value in zip(plan, (place, column.fill, centre, scale, code, kind), strict=True):
                    plan[name].append(float(value))
        for name, values in plan.items():
            self.register_buffer(name, torch.tensor(values, dtype=torch.int64 if name == "place" else torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        """Return the network's inputs."""
        values = x.index_select(1, self.get_buffer("place"))
        gone, kind = values.isnan(), self.get_buffer("kind")
        filled = torch.where(gone, self.get_buffer("fill"), values)
        normal = (filled - self.get_buffer("mean")) / self.get_buffer("deviation")
        category = (filled == self.get_buffer("code")).double()
        return torch.where(kind == 0, normal, torch.where(kind == 1, category, gone.double())).float()


def example_samples(inputs: Inputs) -> Samples:
    """Return random samples as the exported graph takes them; in those of a table, a tenth of the values is missing."""
    rng = generator(0, "export")
    if inputs.schema is None:
        shape = (CHECKED, *inputs.shape)
        if inputs.pixels:
            return rng.integers(0, 256, shape, dtype=np.uint8)
        axes = (-1, *[1] * (len(inputs.shape) - 1))
        mean, std = (np.reshape(values, axes) for values in (inputs.mean, inputs.std))
        return (mean + std * rng.standard_normal(shape)).astype(np.float32)
    columns = []
    for column in inputs.schema.columns:
        if column.kind in READERS:
            columns.append(column.mean + column.deviation * rng.standard_normal(CHECKED))
        else:
            columns.append(rng.integers(0, column.width - column.missing, CHECKED).astype(np.float64))
    rows = np.stack(columns, axis=1)
    return np.where(rng.random(rows.shape) < 0.1, np.nan, rows)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence what torch and onnxscript say about their internals."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _traced(graph: nn.Module, samples: Tensor) -> Any:
    try:
        return torch.export.export(graph, (samples,), dynamic_shapes=({0: torch.export.Dim("n")},))
    except Exception as error:  # of many kinds, and of the user's network
        why = str(error).strip().partition("\n")[0]
        raise FedsatError(f"torch.export cannot trace the network ({type(error).__name__}: {why})") from error


def _torch_file(program: Any, texts: dict[str, str]) -> tuple[bytes, Exported]:
    file = io.BytesIO()
    torch.export.save(program, file, extra_files={EXTRA: json.dumps(texts, indent=1)})
    module = torch.export.load(io.BytesIO(file.getvalue())).module()
    return file.getvalue(), lambda samples: module(torch.from_numpy(samples)).detach().numpy()


def _onnx_file(program: Any, texts: dict[str, str]) -> tuple[bytes, Exported]:
    try:
        import onnx  # noqa: F401, PLC0415 (an extra, like the next two)
        import onnxruntime  # noqa: PLC0415
        import onnxscript  # noqa: F401, PLC0415
    except ImportError as error:
        raise UsageError(f"ONNX files need {error.name}; install it with pip install 'fedsat[onnx]'") from error
    graph = torch.onnx.export(
        program, input_names=["x"], output_names=["probabilities"], dynamo=True, verbose=False, optimize=True
    )
    assert graph is not None
    proto = graph.model_proto
    for key, value in texts.items():
        proto.metadata_props.add(key=key, value=value)
    content: bytes = proto.SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return content, lambda samples: np.asarray(session.run(None, {"x": samples})[0])
