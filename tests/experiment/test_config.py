"""Configurations are complete and checked, and can be written to a file and read back."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import fedsat
from fedsat.algorithms import Algorithm, CrossEntropy, FedSat, PredictionSensitiveLoss
from fedsat.errors import UsageError
from fedsat.experiment.config import Config, read
from fedsat.experiment.parts import method_parts
from fedsat.experiment.settings import override, parse_value
from tests.support.runs import TINY


def test_a_config_survives_its_file() -> None:
    config = fedsat.configure(
        algorithm="fedsat:paper",
        lr=0.002,
        model={"name": "resnet8", "width": 16},
        partition={"name": "ls", "beta": 0.1},
        seed=4,
    )
    again = Config.of(tomllib.loads(config.to_toml()))
    assert again == config
    assert again.algorithm == config.algorithm
    assert again.model["width"] == 16
    assert again.model["norm"] == "batch"


def test_the_file_is_complete() -> None:
    table = tomllib.loads(Config().to_toml())
    assert table["algorithm"]["weighting"]["sigma"] == 2.0
    assert table["algorithm"]["objective"]["name"] == "psl"
    assert table["partition"] == {"name": "lsmc", "classes_per_client": 2, "skew": 0.5, "sizes": "even"}
    assert table["model"]["hidden"] == [80, 60]


def test_short_names_reach_nested_settings() -> None:
    config = fedsat.configure(gamma=0.5, epsilon2=3, sigma=1.5, skew=1.0)
    assert isinstance(config.algorithm, FedSat)
    assert config.algorithm.gamma == 0.5
    assert config.algorithm.objective == PredictionSensitiveLoss(epsilon2=3)
    assert config.table()["partition"]["skew"] == 1.0


def test_parts_come_before_their_options_whatever_the_order() -> None:
    config = Config.of(override({}, [("beta", 0.1), ("partition", "ls"), ("algorithm", "fedavg")]))
    assert config.table()["partition"]["beta"] == 0.1


def test_naming_the_same_part_keeps_its_options() -> None:
    table = {"algorithm": {"name": "fedsat", "gamma": 0.3}}
    assert override(table, [("algorithm", "fedsat")])["algorithm"]["gamma"] == 0.3
    assert override(table, [("algorithm", "fedsat:paper")])["algorithm"]["gamma"] == 1.0


def test_parts_may_be_given_as_objects_and_classes() -> None:
    config = fedsat.configure(algorithm=FedSat(gamma=0.25), model="mlp")
    assert config.algorithm == FedSat(gamma=0.25)
    assert fedsat.configure(algorithm=FedSat).algorithm == FedSat()


@pytest.mark.parametrize(
    ("settings", "method"),
    [
        ({"algorithm": "fedavg"}, "fedavg"),
        ({"algorithm": "fedsat"}, "fedsat"),
        ({"algorithm": "fedsat", "gamma": 0.5}, "fedsat"),
        ({"algorithm": "fedsat:paper"}, "fedsat:paper"),
        ({"algorithm": "fedsat", "without": ["psl", "pwa"]}, "fedsat-psl-pwa"),
        ({"algorithm": "fedsat", "without": ["correction"]}, "fedsat-correction"),
        ({"algorithm": "fedavg", "with_parts": ["psl", "pwa"]}, "fedavg+psl+pwa"),
        ({"algorithm": "scaffold", "with_parts": ["multi-krum"]}, "scaffold+multi-krum"),
        ({"without": ["pwa"], "with_parts": ["trimmed-mean"]}, "fedsat-pwa+trimmed-mean"),
    ],
)
def test_the_method_names_its_parts(settings: dict[str, Any], method: str) -> None:
    config = fedsat.configure(**settings)
    assert config.method == method
    if "gamma" not in settings:  # and the name leads back to it
        assert Config.of(override({}, *method_parts(method))).algorithm == config.algorithm


def test_methods_that_do_not_exist_are_refused_by_name() -> None:
    for label in ("fedsatt", "fedsat-everything", "fedsat+nothing"):
        with pytest.raises(UsageError, match="unknown"):
            override({}, *method_parts(label))


def test_switching_parts() -> None:
    bare = fedsat.configure(algorithm="fedsat", without=["psl", "correction", "pwa"]).algorithm
    assert isinstance(bare, FedSat)
    assert not bare.correction
    assert (bare.objective, bare.weighting) == (fedsat.Algorithm().objective, fedsat.Algorithm().weighting)
    with pytest.raises(UsageError, match="fedavg has no part 'psl'"):
        fedsat.configure(algorithm="fedavg", without=["psl"])
    with pytest.raises(UsageError, match="did you mean 'psl'"):
        fedsat.configure(without=["pls"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"roundz": 3}, "did you mean 'rounds'"),
        ({"rounds": 0}, "at least 1"),
        ({"rounds": 2.5}, "a whole number"),
        ({"rounds": "many"}, "a whole number"),
        ({"lr": float("nan")}, "above 0"),
        ({"augment": "flip"}, "crop-flip"),
        ({"clients": 5, "per_round": 6}, "only 5 clients"),
        ({"algorithm.gama": 1}, "option of the algorithm fedsat: 'gama'; did you mean 'gamma'"),
        ({"algorithm": "fedavq"}, "did you mean 'fedavg'"),
        ({"algorithm": "fedsat", "sigma": -1}, "weighting.sigma is -1"),
        ({"hidden": 5}, "must be a list"),
        ({"correction": 1}, "true or false"),
        ({"algorithm": {"gamma": 1}}, "needs a name"),
        ({"objective": 3}, "objective needs a name"),
        ({"model": 3}, "model needs a name"),
        ({"lr": float("inf")}, "finite"),
    ],
)
def test_bad_settings_are_refused_with_a_reason(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        fedsat.configure(**settings)


def test_ambiguous_names_are_refused() -> None:
    with pytest.raises(UsageError, match=r"partition.beta or algorithm.weighting.beta"):
        fedsat.configure(partition="ls", beta=0.3)


def test_values_from_the_command_line() -> None:
    assert [parse_value(text) for text in ("3", "0.5", "true", "[1, 2]", "soft", "1e-3")] == [
        3, 0.5, True, [1, 2], "soft", 0.001,
    ]  # fmt: skip


def test_the_order_of_settings_does_not_matter() -> None:
    assert fedsat.configure(objective="psl", algorithm="fedavg").method == "fedavg+psl"
    with_cost = fedsat.configure(epsilon2=3, with_parts=["psl"], algorithm="fedavg")
    assert with_cost.algorithm.objective == PredictionSensitiveLoss(epsilon2=3)
    kept = fedsat.configure(epsilon2=3, with_parts=["psl"], algorithm="fedsat")
    assert kept.algorithm.objective == PredictionSensitiveLoss(epsilon2=3)
    with pytest.raises(UsageError, match="epsilon2"):
        fedsat.configure(epsilon2=3, without=["psl"])


def test_a_partition_file_is_recorded_and_repeated(tmp_path: Path) -> None:
    path = tmp_path / "split.json"
    path.write_text(json.dumps([list(range(client, 6000, 12)) for client in range(12)]))
    settings = {**TINY, "rounds": 1, "partition": {"name": "file", "path": path}}
    del settings["classes_per_client"]
    first = fedsat.run(**settings, out=tmp_path / "run")
    assert tomllib.loads((tmp_path / "run" / "config.toml").read_text())["partition"]["path"] == str(path)
    again = fedsat.run(**read(tmp_path / "run" / "config.toml"))
    assert again.summary["accuracy"] == first.summary["accuracy"]


def test_dirichlet_is_another_name_of_ls() -> None:
    config = fedsat.configure(partition={"name": "dirichlet", "beta": 0.5})
    assert config.table()["partition"] == {"name": "ls", "beta": 0.5, "balanced": True}


def test_a_module_instance_is_refused_with_what_to_give() -> None:
    with pytest.raises(UsageError, match=r"model is an instance of Linear; give the class, model=Linear"):
        fedsat.configure(model=nn.Linear(3, 2))


def test_user_defined_parts_are_added_and_left_out() -> None:
    config = fedsat.configure(algorithm=f"{__name__}:Mine", with_parts=["psl", f"{__name__}:Loss"])
    assert config.method == f"{__name__}:Mine+{__name__}:Loss"
    assert method_parts(config.method) == ([("algorithm", f"{__name__}:Mine")], [f"{__name__}:Loss"], [])
    assert method_parts(f"{__name__}:Mine+psl-pwa")[1:] == (["psl"], ["pwa"])
    assert fedsat.configure(algorithm="fedavg", with_parts=["logit-calibration"]).method == "fedavg+logit-calibration"


class Mine(Algorithm):
    """A user-defined method."""


class Loss(CrossEntropy):
    """A user-defined loss."""
