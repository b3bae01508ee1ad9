"""The examples of `examples/extend`: as commands, in Python, on both engines, by hand, and as an installed package."""

from __future__ import annotations

import shlex
import shutil
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedsat
from examples.extend import (
    aggregator,
    attack,
    callback,
    dataset,
    method,
    metric,
    model,
    objective,
    partition,
    weighting,
)
from fedsat.algorithms import Batch, Model, Outputs, Updates
from fedsat.data import Federation, make_partition
from fedsat.experiment.folder import read_summary
from fedsat.experiment.store import StoredRun
from tests.support.byhand import make_task
from tests.support.calling import fedsat as call
from tests.support.federations import furthest
from tests.support.packages import installed

FOLDER = Path(dataset.__file__).parent
EXAMPLES = {path.stem: path for path in sorted(FOLDER.glob("*.py"))}
SMALL = "--per-round 3 --workers 2 --rounds 2 --epochs 1 --evaluate-every 2 --batch-size 64 --device cpu".split()
TINY: dict[str, Any] = {
    "clients": 12, "per_round": 4, "workers": 2, "rounds": 2, "epochs": 1, "batch_size": 32, "precision": "float64",
    "device": "cpu", "lr": 0.05, "hidden": [8], "algorithm": "fedavg",
}  # fmt: skip
MACHINES = dataset.machines()


def command(name: str) -> str:
    """The command in the docstring of an example."""
    return EXAMPLES[name].read_text(encoding="utf-8").split("\n")[2]


@pytest.fixture
def in_the_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(FOLDER)
    yield
    for name in EXAMPLES:
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", EXAMPLES)
def test_its_command(name: str, tmp_path: Path, in_the_folder: None, capsys: pytest.CaptureFixture[str]) -> None:
    program, *words = shlex.split(command(name))
    more = {
        "dataset": [],  # it has twelve clients
        "feature_shift": [],
        "callback": "--clients 100 --evaluate-every 1 --rounds 12 --lr 1e-9".split(),
    }.get(name, ["--clients", "100"])
    code, out, err = call(capsys, *words, *SMALL, *more, "--out", str(tmp_path / "run"))
    assert (program, code, err) == ("fedsat", 0, "")
    if name == "callback":
        assert read_summary(tmp_path / "run")["stopped"] == "the worst class has not improved for 10 evaluations"
        return
    assert f"{name}:" in (tmp_path / "run" / "config.toml").read_text()
    assert ("G-mean %" in out) == (name == "metric")


def test_the_readme_lists_every_file_with_its_command() -> None:
    rows = (FOLDER / "README.md").read_text(encoding="utf-8").splitlines()
    for name in EXAMPLES:
        assert any(f"({name}.py)" in row and f"`{command(name)}`" in row for row in rows), name


PARTS: dict[str, dict[str, Any]] = {
    "method": {"algorithm": method.LocalMomentum()},
    "objective": {"objective": objective.Focal()},
    "weighting": {"weighting": weighting.SquareRoot()},
    "aggregator": {"aggregator": aggregator.GeometricMedian()},
    "attack": {"attack": attack.ClassFlip(), "attackers": 0.5},
    "partition": {"partition": partition.PowerLaw()},
}


@pytest.mark.parametrize("name", PARTS)
def test_both_engines_give_the_same_numbers(name: str) -> None:
    plain = {"dataset": MACHINES, **TINY, "partition": "quantity"}
    one, many = (fedsat.run(**{**plain, **PARTS[name]}, engine=engine) for engine in ("sequential", "stacked"))
    assert furthest(one.model.params, many.model.params) < 1e-9
    assert one.records[-1].weights == pytest.approx(many.records[-1].weights, rel=1e-9)
    assert furthest(one.model.params, fedsat.run(**plain).model.params) > 1e-6  # the part makes a difference


def test_both_engines_train_the_model() -> None:
    settings = {**TINY, "clients": 100, "model": model.SmallNet, "width": 4}
    del settings["hidden"]
    one, many = (fedsat.run(**settings, engine=engine) for engine in ("sequential", "stacked"))
    assert many.notes == []  # it is folded
    assert furthest(one.model.params, many.model.params) < 1e-9


def test_steps_with_momentum_by_hand() -> None:
    part = method.LocalMomentum(beta=0.5)
    start = Model({"w": torch.tensor([1.0])}, {})
    state = {"momentum": {"w": torch.tensor([[2.0]])}}
    task = make_task(1, start=start, state=state, lr=0.1)
    params, carry = part.step(task, part.begin(task), {"w": torch.tensor([[1.0]])}, {"w": torch.tensor([[4.0]])})
    assert carry["momentum"]["w"].item() == pytest.approx(0.5 * 2 + 4)
    assert params["w"].item() == pytest.approx(1 - 0.1 * 5)
    _, carry = part.step(task, carry, params, {"w": torch.tensor([[-1.0]])})
    assert carry["momentum"]["w"].item() == pytest.approx(0.5 * 5 - 1)


def test_the_focal_loss_by_hand() -> None:
    logits, labels = torch.tensor([[[3.0, 1.0]]]).log(), torch.tensor([[0]])  # p = 3/4
    batch = Batch(torch.empty(1, 1), labels, labels == 0)
    loss, _ = objective.Focal(focus=2.0).loss({}, Outputs(logits), batch)
    assert loss.item() == pytest.approx(0.25**2 * -np.log(0.75))


def test_weights_by_square_roots_by_hand() -> None:
    nothing, three = Model({}, {}), torch.arange(3)
    updates = Updates(three, nothing, {}, torch.tensor([1, 4, 9]), three, 0.1, 1, 3)
    assert weighting.SquareRoot().weigh(updates, None).weights.tolist() == pytest.approx([1 / 6, 2 / 6, 3 / 6])


def test_the_geometric_median_by_hand() -> None:
    updates = {"w": torch.tensor([[0.0], [1.0], [11.0]], dtype=torch.float64)}
    equal = torch.full((3,), 1 / 3, dtype=torch.float64)
    # One step from the mean, 4: distances 4, 3 and 7.
    inverse = np.array([1 / 4, 1 / 3, 1 / 7])
    found = aggregator.GeometricMedian(steps=1).select(updates, equal)
    assert found.tolist() == pytest.approx(list(inverse / inverse.sum()))
    # On a line, the geometric median is the median.
    part = aggregator.GeometricMedian(steps=100)
    assert part.centre(updates, part.select(updates, equal))["w"].item() == pytest.approx(1, abs=1e-3)
    assert part.total(updates, equal)["w"].item() == pytest.approx(12)


def test_sizes_by_a_power_law_by_hand() -> None:
    owners = make_partition(partition.PowerLaw(exponent=1.0), np.arange(14) % 2, 2, 3, seed=0)
    # One each, and 11 in proportion to 1, 1/2 and 1/3: 6, 3 and 2.
    assert sorted(np.bincount(owners).tolist()) == [3, 4, 7]


def test_only_the_attackers_samples_of_one_class_are_relabelled() -> None:
    federation = Federation.build(MACHINES, "natural", 12, seed=0)
    poisoned = attack.ClassFlip(victim=2, becomes=0).poison(federation, np.array([5]))
    before, after = MACHINES.train.labels, poisoned.dataset.train.labels
    changed = np.flatnonzero(before != after)
    held = federation.indices(5)
    assert set(changed) == set(held[before[held] == 2])
    assert set(after[changed]) == {0}
    with pytest.raises(fedsat.UsageError, match="must be below 4"):
        attack.ClassFlip(victim=4).poison(federation, np.array([5]))


def test_the_geometric_mean_by_hand() -> None:
    evaluation = fedsat.Evaluation(np.array([[8, 2], [5, 5]]), 0.5)
    assert metric.geometric_mean(evaluation) == pytest.approx(np.sqrt(0.8 * 0.5))


def test_patience_in_python() -> None:
    settings = {**TINY, "rounds": 5, "lr": 1e-9}
    run = fedsat.run(dataset=MACHINES, **settings, callbacks=[callback.Patience(evaluations=2)])
    assert (len(run.records), run.stopped) == (3, "the worst class has not improved for 2 evaluations")


def test_the_dataset() -> None:
    assert (MACHINES.clients, MACHINES.input_shape, MACHINES.classes) == (12, (64,), 4)
    shares = np.bincount(MACHINES.train.labels) / len(MACHINES.train)
    assert shares.argmin() == 3
    assert shares[3] < 0.1
    assert np.array_equal(dataset.machines().train.images, MACHINES.train.images)  # a run can be repeated


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, dict[str, str]]]:
    """The examples as an installed package; its entry points."""
    project = tomllib.loads((FOLDER / "pyproject.toml").read_text(encoding="utf-8"))
    groups = project["project"]["entry-points"]
    folder = tmp_path / "site"
    shutil.copytree(FOLDER, folder / project["tool"]["setuptools"]["packages"][0])
    monkeypatch.chdir(tmp_path)
    with installed(folder, project["project"]["name"], groups):
        yield groups


def test_the_package_offers_every_part(package: dict[str, dict[str, str]]) -> None:
    files = {point.partition(":")[0].rpartition(".")[2] for group in package.values() for point in group.values()}
    assert files == set(EXAMPLES) - {"callback"}


def test_parts_of_the_package_by_name(
    package: dict[str, dict[str, str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = (
        "--algorithm local-momentum --with focal,square-root,geometric-median --model small-net --set width=4 "
        "--partition power-law --attack class-flip --attackers 0.3 --metrics geometric_mean "
        "--clients 100"
    ).split()
    assert call(capsys, "run", *names, *SMALL, "--out", "one")[::2] == (0, "")
    written = tomllib.loads(Path("one/config.toml").read_text())
    assert [written[part]["name"] for part in ("algorithm", "model", "partition", "attack")] == [
        "local-momentum", "small-net", "power-law", "class-flip",
    ]  # fmt: skip
    assert StoredRun.read(tmp_path / "one").method == "local-momentum+focal+square-root+geometric-median"
    assert call(capsys, "run", "one/config.toml", "--out", "again")[0] == 0
    assert Path("one/model.safetensors").read_bytes() == Path("again/model.safetensors").read_bytes()
    assert call(capsys, "resume", "one", "--rounds", "3")[::2] == (0, "")
    assert len(StoredRun.read(tmp_path / "one").records) == 3


def test_a_comparison_with_parts_of_the_package(
    package: dict[str, dict[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    data = "--dataset machines --partition natural --clients 12 --set hidden=[8]".split()
    methods = "fedavg+focal,local-momentum+square-root"
    code, out, err = call(capsys, "compare", "--methods", methods, *data, *SMALL, "--out", "all")
    assert (code, err) == (0, "")
    assert all(name in out for name in methods.split(","))
    assert len([*Path("all").glob("*/summary.json")]) == 2
    again = call(capsys, "compare", "--methods", methods, *data, *SMALL, "--out", "all")[1]
    assert ("round 2/2" in out, "round 2/2" in again) == (True, False)
