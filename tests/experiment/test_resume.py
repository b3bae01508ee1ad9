"""Interrupted runs continue as if they had not been interrupted."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedsat
from fedsat.algorithms import Model, Server, algorithms, footprint
from fedsat.experiment import Run
from fedsat.experiment.checkpoint import Checkpoints, checkpointed_rounds
from fedsat.metrics import RoundRecord
from fedsat.rounds import FederationState
from tests.support.runs import TINY, killed_after, results

ENGINES = ("stacked", "sequential")
KEEPING = [name for name in algorithms if (found := footprint(algorithms.build(name))).client or found.server]
"""The methods that a checkpoint stores something for; the others resume as FedAvg does."""


class Dropping(nn.Sequential):
    """A network that draws random numbers during training, and has buffers."""

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__(
            nn.Flatten(),
            nn.Linear(int(np.prod(input_shape)), 8),
            nn.BatchNorm1d(8),
            nn.Dropout(),
            nn.Linear(8, classes),
        )


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("method", ["fedavg", *KEEPING])
def test_a_killed_run_ends_as_an_undisturbed_one(tmp_path: Path, method: str, engine: str) -> None:
    settings = {"algorithm": method, "engine": engine}
    fedsat.run(**TINY, **settings, out=tmp_path / "whole")
    killed_after(5, tmp_path / "killed", **settings)
    assert len((tmp_path / "killed" / "metrics.jsonl").read_text().splitlines()) == 5
    run = fedsat.resume(tmp_path / "killed")
    assert "resumes after round 4 of 6" in run.notes[0]
    assert results(tmp_path / "killed") == results(tmp_path / "whole")


@pytest.mark.parametrize("engine", ENGINES)
def test_dropout_and_batch_statistics_continue(tmp_path: Path, engine: str) -> None:
    settings = {"model": Dropping, "engine": engine, "algorithm": "scaffold"}
    tiny = {key: value for key, value in TINY.items() if key != "hidden"}
    fedsat.run(**tiny, **settings, out=tmp_path / "whole")
    run = fedsat.prepare(fedsat.configure(**tiny, **settings), tmp_path / "killed")
    for _ in range(3):
        run.run_round()
    del run
    torch.rand(7)  # other random draws of the process do not matter
    fedsat.resume(tmp_path / "killed")
    assert results(tmp_path / "killed") == results(tmp_path / "whole")


@pytest.mark.parametrize("attack", ["noise", "lying-worker"])
def test_faults_and_attacks_continue(tmp_path: Path, attack: str) -> None:
    settings = {"dropout": 0.3, "attack": attack, "attackers": 0.3, "algorithm": "fedsat:robust"}
    settings |= {"stragglers": 0.5, "epochs": 2}
    tiny = {key: value for key, value in TINY.items() if key not in settings}
    fedsat.run(**tiny, **settings, out=tmp_path / "whole")
    killed_after(5, tmp_path / "killed", **settings)
    fedsat.resume(tmp_path / "killed")
    assert results(tmp_path / "killed") == results(tmp_path / "whole")


def test_a_checkpoint_has_all_state_between_rounds() -> None:
    """Every field must be written to checkpoints and read from them."""
    assert [field.name for field in dataclasses.fields(FederationState)] == ["server", "states", "rounds"]
    assert [field.name for field in dataclasses.fields(Server)] == ["model", "memory"]


@pytest.mark.parametrize("where", ["train", "evaluate", "write"])
def test_control_c_leaves_a_checkpoint_of_whole_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    fedsat.run(**TINY, out=tmp_path / "whole")
    run = fedsat.prepare(fedsat.configure(**TINY), tmp_path / "run")
    for _ in range(3):
        run.run_round()

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(*{
        "train": (run.setup.engine, "train", interrupt),
        "evaluate": (run.setup.engine, "evaluate", interrupt),
        "write": (run.folder, "save_model", interrupt),
    }[where])  # fmt: skip
    with pytest.raises(KeyboardInterrupt):
        fedsat.train(run)
    monkeypatch.undo()
    if where == "write":  # after the last round
        assert checkpointed_rounds(tmp_path / "run") == [6, 4]
    else:
        assert checkpointed_rounds(tmp_path / "run") == [3, 2]
        assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "interrupted"
    del run
    fedsat.resume(tmp_path / "run")
    assert results(tmp_path / "run") == results(tmp_path / "whole")


def test_sigterm_is_an_interruption(tmp_path: Path) -> None:
    def terminate(run: Run, line: RoundRecord) -> None:
        if line.round == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    fedsat.run(**TINY, out=tmp_path / "whole")
    with pytest.raises(SystemExit) as end:
        fedsat.run(**TINY, out=tmp_path / "run", callbacks=[terminate])
    assert end.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert checkpointed_rounds(tmp_path / "run")[0] == 2
    del end
    fedsat.resume(tmp_path / "run")
    assert results(tmp_path / "run") == results(tmp_path / "whole")


def test_runs_continue_in_other_threads(tmp_path: Path) -> None:
    thread = threading.Thread(target=lambda: fedsat.run(**TINY, out=tmp_path / "run"))
    thread.start()
    thread.join()
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "completed"


def test_a_completed_run_continues_to_more_rounds(tmp_path: Path) -> None:
    fedsat.run(**{**TINY, "rounds": 4}, out=tmp_path / "run")
    assert checkpointed_rounds(tmp_path / "run") == [4]
    with pytest.raises(fedsat.UsageError, match="complete with 4 rounds; to train for longer, use --rounds N"):
        fedsat.resume(tmp_path / "run")
    with pytest.raises(fedsat.UsageError, match="complete with 4 rounds"):
        fedsat.resume(tmp_path / "run", rounds=3)
    fedsat.resume(tmp_path / "run", rounds=6)
    fedsat.run(**TINY, out=tmp_path / "whole")
    assert results(tmp_path / "run") == results(tmp_path / "whole")


def test_an_error_says_that_a_run_without_a_checkpoint_is_complete(tmp_path: Path) -> None:
    run = fedsat.prepare(fedsat.configure(**TINY), tmp_path)
    fedsat.train(run, for_more=False)  # like `fedsat compare`
    del run
    with pytest.raises(fedsat.UsageError, match=r"is complete with 6 rounds and has no checkpoint; .* --rounds N"):
        fedsat.resume(tmp_path)
    with pytest.raises(fedsat.UsageError, match=r"is complete with 6 rounds .*config\.toml --rounds 8"):
        fedsat.resume(tmp_path, rounds=8)
    assert not (tmp_path / "checkpoints").exists()


def test_fewer_rounds_than_done_are_refused(tmp_path: Path) -> None:
    killed_after(5, tmp_path)
    with pytest.raises(fedsat.UsageError, match="already has 4 rounds"):
        fedsat.resume(tmp_path, rounds=3)
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 5


def test_a_run_killed_before_its_first_checkpoint_begins_again(tmp_path: Path) -> None:
    fedsat.run(**TINY, out=tmp_path / "whole")
    killed_after(1, tmp_path / "run")
    fedsat.resume(tmp_path / "run")
    assert results(tmp_path / "run") == results(tmp_path / "whole")


def test_a_torn_line_and_rounds_after_the_checkpoint_are_cut(tmp_path: Path) -> None:
    killed_after(5, tmp_path)
    metrics = tmp_path / "metrics.jsonl"
    with metrics.open("ab") as file:
        file.write(metrics.read_bytes()[:40])
    run = fedsat.restore(tmp_path)
    assert [line.round for line in run.records] == [1, 2, 3, 4]
    assert len(metrics.read_text().splitlines()) == 4


def test_a_changed_configuration_is_refused_with_what_changed(tmp_path: Path) -> None:
    killed_after(3, tmp_path)
    config = tmp_path / "config.toml"
    original = config.read_text()
    config.write_text(original.replace("lr = 0.05", "lr = 0.1").replace("gamma = 0.9", "gamma = 0.5"))
    with pytest.raises(fedsat.UsageError, match=r"lr was 0\.05 and is 0\.1; algorithm\.gamma was 0\.9 and is 0\.5"):
        fedsat.resume(tmp_path)
    config.write_text(original.replace("checkpoint_every = 2", "checkpoint_every = 3"))
    assert fedsat.resume(tmp_path).training.rounds == 6


def test_changed_data_and_models_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = np.random.default_rng(0).normal(size=(120, 5)).astype(np.float32)
    labels = np.arange(120) % 4
    np.save(tmp_path / "images.npy", images)
    np.save(tmp_path / "labels.npy", labels)
    killed_after(3, tmp_path / "run", dataset=str(tmp_path))
    for name, other in (("labels", labels[::-1]), ("images", images[::-1])):
        np.save(tmp_path / f"{name}.npy", other)
        with pytest.raises(fedsat.UsageError, match="the data, or their partition, have changed"):
            fedsat.resume(tmp_path / "run")
        np.save(tmp_path / f"{name}.npy", other[::-1])
    monkeypatch.setattr("fedsat.experiment.setup.build_model", lambda *_: nn.Linear(5, 4))
    with pytest.raises(fedsat.UsageError, match="the model mlp now has different weights"):
        fedsat.resume(tmp_path / "run")


@pytest.mark.parametrize("kind", ["json", "safetensors"])
def test_a_damaged_checkpoint_is_noticed_and_the_one_before_used(tmp_path: Path, kind: str) -> None:
    fedsat.run(**TINY, out=tmp_path / "whole")
    killed_after(5, tmp_path / "run")
    newest = tmp_path / "run" / "checkpoints" / f"round-000004.{kind}"
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 4
    newest.write_bytes(content)
    run = fedsat.resume(tmp_path / "run")
    assert "the checkpoint of round 4 is damaged" in run.notes[0]
    assert "resumes after round 2 of 6" in run.notes[1]
    assert results(tmp_path / "run") == results(tmp_path / "whole")


def test_two_damaged_checkpoints_are_too_many(tmp_path: Path) -> None:
    killed_after(5, tmp_path)
    before = (tmp_path / "metrics.jsonl").read_bytes()
    for path in (tmp_path / "checkpoints").glob("*.json"):
        path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(
        fedsat.FedsatError, match=r"cannot be resumed: the checkpoint of round 4 .*round 2 .*to repeat it"
    ):
        fedsat.resume(tmp_path)
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


def test_metrics_that_were_changed_are_noticed(tmp_path: Path) -> None:
    killed_after(3, tmp_path)
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace('"round": 1,', '"round": 9,'))
    with pytest.raises(fedsat.FedsatError, match=r"metrics\.jsonl has been changed since"):
        fedsat.resume(tmp_path)


def test_a_run_belongs_to_one_process(tmp_path: Path) -> None:
    run = fedsat.prepare(fedsat.configure(**TINY), tmp_path)
    run.run_round()
    code = f"import fedsat; fedsat.resume({str(tmp_path)!r})"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "is in use by another process" in other.stderr
    fedsat.train(run)


def test_no_checkpoints(tmp_path: Path) -> None:
    killed_after(3, tmp_path, checkpoint_every=0)
    assert not (tmp_path / "checkpoints").exists()
    with pytest.raises(fedsat.UsageError, match="without checkpoints"):
        fedsat.resume(tmp_path)
    with pytest.raises(fedsat.UsageError, match="contains no run"):
        fedsat.resume(tmp_path / "nothing")


def test_rounds_that_others_recorded_are_not_thrown_away(tmp_path: Path) -> None:
    killed_after(1, tmp_path)
    shutil.rmtree(tmp_path / "checkpoints")
    before = (tmp_path / "metrics.jsonl").read_bytes()
    with pytest.raises(fedsat.UsageError, match="without checkpoints"):
        fedsat.resume(tmp_path)
    assert (tmp_path / "metrics.jsonl").read_bytes() == before
    assert not (tmp_path / "checkpoints").exists()


def test_two_checkpoints_are_kept(tmp_path: Path) -> None:
    killed_after(5, tmp_path, checkpoint_every=1)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == [
        "lock", "round-000004.json", "round-000004.safetensors", "round-000005.json", "round-000005.safetensors",
    ]  # fmt: skip


def test_default_checkpoints_take_a_small_part_of_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def after(rounds: int, megabytes: int) -> FederationState:
        weights = torch.zeros(megabytes * 250_000)
        return FederationState(Server(Model({"weights": weights}, {})), rounds=rounds)

    now = [100.0]
    monkeypatch.setattr("fedsat.experiment.checkpoint.time.monotonic", lambda: now[0])
    checkpoints = Checkpoints(tmp_path, None)
    now[0] += 1.1
    assert checkpoints.due(after(10, megabytes=4))  # 4 MB at 200 MB/s are 0.02 s, which is 2 % of a second
    assert not checkpoints.due(after(10, megabytes=5))
    assert not checkpoints.due(after(11, megabytes=4))
    assert checkpoints.due_at_the_end(after(11, megabytes=200))  # the last one may take a second …
    assert not checkpoints.due_at_the_end(after(11, megabytes=201))
    now[0] += 98.9
    assert checkpoints.due_at_the_end(after(11, megabytes=600))  # … or as much as brings it to 3 % of 100 s
    assert not checkpoints.due_at_the_end(after(11, megabytes=601))
    asked = Checkpoints(tmp_path, 3)
    assert asked.due(after(9, megabytes=400))
    assert asked.due_at_the_end(after(10, megabytes=400))


def test_a_note_says_that_the_last_digits_may_differ_on_another_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_after(3, tmp_path)
    monkeypatch.setattr("fedsat.experiment.environment.__version__", "99")
    assert any("fedsat was" in note and "and is 99: the last digits" in note for note in fedsat.restore(tmp_path).notes)
