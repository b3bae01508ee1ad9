"""Any small configuration runs or is refused with a reason; any configuration file is read or refused."""

from __future__ import annotations

import math
import typing
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedsat
from fedsat.algorithms import algorithms, objectives, weightings
from fedsat.data import partitions
from fedsat.experiment.config import Config, read
from fedsat.options import OptionField
from fedsat.registry import Registry
from tests.support.mutations import mutated, mutated_text, refused_or, tries

SMALLEST, LARGEST = 1e-12, 1e12
"""Draw plausible floats; other tests cover extreme ones."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return small data of three shapes: images with one and three channels, and plain features."""
    rng = np.random.default_rng(1)
    shapes = {"grey": (1, 28, 28), "colour": (3, 32, 32), "features": (5,)}
    found = {}
    for name, shape in shapes.items():
        folder = tmp_path_factory.mktemp(name)
        images = rng.integers(0, 256, (48, *shape)).astype(np.uint8 if len(shape) == 3 else np.float32)
        np.save(folder / "images.npy", images)
        np.save(folder / "labels.npy", rng.permutation(np.arange(48) % 4))
        found[name] = str(folder)
    return found


def values(field: OptionField) -> st.SearchStrategy[Any]:
    """Draw values that an option accepts according to its description."""
    option, kind = field.option, field.type
    kinds = [part for part in typing.get_args(kind) if part is not type(None)]
    if typing.get_origin(kind) is Literal:
        return st.sampled_from(kinds)
    if option.among is not None:
        return parts(option.among)
    if kind is bool:
        return st.booleans()
    if kind is int:
        low = int(option.at_least or 0)
        return st.integers(low, low + 4)
    if kind is float:
        low = option.at_least if option.at_least is not None else option.above
        high = option.at_most if option.at_most is not None else option.below
        return st.floats(
            -LARGEST if low is None else low,
            LARGEST if high is None else high,
            exclude_min=option.above is not None and low == option.above,
            exclude_max=option.below is not None and high == option.below,
            allow_nan=False,
            allow_subnormal=False,
        ).map(lambda number: number if number == 0 or abs(number) > SMALLEST else math.copysign(SMALLEST, number))
    return st.just(field.default)


def parts(registry: Registry[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Draw any part of a kind with a few of its options."""

    def options(name: str) -> st.SearchStrategy[dict[str, Any]]:
        some = {key: values(field) for key, field in registry.options(name).items()}
        return st.fixed_dictionaries({"name": st.just(name)}, optional=some)

    return st.sampled_from(list(registry)).flatmap(options)


MODELS = st.one_of(
    st.fixed_dictionaries(
        {"name": st.just("mlp")}, optional={"hidden": st.lists(st.integers(1, 6), max_size=3), "projection": st.just(4)}
    ),
    st.just({"name": "lenet5"}),
    st.fixed_dictionaries(
        {"name": st.just("resnet8"), "width": st.sampled_from([2, 4])},
        optional={"norm": st.sampled_from(["batch", "group", "none"])},
    ),
)

SETTINGS = st.fixed_dictionaries(
    {
        "dataset": st.sampled_from(["grey", "colour", "features", "features"]),
        "clients": st.integers(1, 8),
        "per_round": st.integers(1, 5),
        "workers": st.integers(1, 9),
        "rounds": st.just(2),
        "epochs": st.integers(1, 2),
        "batch_size": st.integers(1, 20),
        "lr": st.sampled_from([1e-9, 0.01, 0.1, 10.0, 1e6]),
        "algorithm": parts(algorithms),
        "partition": parts(partitions),
        "model": MODELS,
        "seed": st.integers(0, 2**40),
    },
    optional={
        "augment": st.sampled_from(["none", "crop-flip"]),
        "evaluate_every": st.integers(1, 3),
        "client_accuracy": st.sampled_from(["expected", "test-split", "local"]),
        "validation": st.sampled_from([0.0, 0.1, 0.5]),
        "engine": st.sampled_from(["auto", "stacked", "sequential"]),
        "precision": st.sampled_from(["float32", "float64", "bf16"]),
        "image_size": st.sampled_from([None, 7]),
    },
)


@tries(60)
@given(settings=SETTINGS)
def test_a_small_configuration_runs_or_is_refused(settings: dict[str, Any], folders: dict[str, str]) -> None:
    run = refused_or(lambda: fedsat.run(**settings | {"dataset": folders[settings["dataset"]]}))
    if run is None:
        return
    assert len(run.records) == 2
    for line in run.records:
        weights = np.array(line.weights)
        assert np.isfinite(weights).all()
        assert (weights >= 0).all()
        assert weights.sum() == pytest.approx(1)
        assert math.isfinite(line.train_loss)
    assert all(bool(tensor.isfinite().all()) for tensor in run.model.params.values())


CONFIG = fedsat.configure(algorithm="scaffold", with_parts=["psl", "pwa"], model="resnet8").to_toml()


@tries(150)
@given(text=mutated_text(CONFIG))
def test_a_changed_configuration_file_is_read_or_refused(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    check_file(tmp_path_factory.getbasetemp() / "changed.toml", text.encode("utf-8", "surrogatepass"))


@tries(150)
@given(content=mutated(CONFIG.encode()))
def test_a_damaged_configuration_file_is_read_or_refused(
    content: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    check_file(tmp_path_factory.getbasetemp() / "damaged.toml", content)


def check_file(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    config = refused_or(lambda: Config.of(read(path)))
    assert config is None or Config.of(config.table()) == config


@tries(40)
@given(objective=parts(objectives), weighting=parts(weightings))
def test_parts_survive_a_table(objective: dict[str, Any], weighting: dict[str, Any]) -> None:
    method = {"name": "fedavg", "objective": objective, "weighting": weighting}
    config = refused_or(lambda: fedsat.configure(algorithm=method))
    assert config is None or Config.of(config.table()) == config
