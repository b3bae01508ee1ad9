"""Early stopping and the time budget: when they end a run, which model is kept, and resuming."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fedsat
from fedsat.errors import UsageError
from fedsat.experiment.folder import read_summary
from fedsat.experiment.stopping import Criterion, EarlyStopping, TimeBudget, best_record
from fedsat.experiment.store import StoredRun
from fedsat.metrics import METRICS, RoundRecord
from tests.support.runs import TINY, killed_after, results

STOPPING: dict[str, Any] = {
    **TINY, "algorithm": "fedavg", "rounds": 30, "evaluate_every": 1, "lr": 3.0, "early_stop": "test:loss",
    "patience": 2,
}  # fmt: skip
"""A rate at which the loss soon stops falling."""


def recorded(*values: float | None, name: str = "loss", seconds: float = 1.0) -> list[RoundRecord]:
    """Records with a metric; rounds with None were not evaluated."""
    return [
        RoundRecord(
            number,
            0.0,
            [],
            [],
            1.0,
            0,
            0,
            seconds={"train": seconds},
            metrics={} if v is None else {"accuracy": 0.0, name: v},
        )
        for number, v in enumerate(values, start=1)
    ]


def test_patience_counts_rounds_since_the_best() -> None:
    rule = EarlyStopping(Criterion(METRICS["loss"], on_test=True), patience=3)
    assert rule.reason([]) is None
    assert rule.reason(recorded(5, 3, 4, 3)) is None
    assert rule.reason(recorded(5, 3, 4, 3, 3)) == "test:loss has not improved for 3 rounds; it was 3 in round 2"
    assert rule.reason(recorded(5, 3, 4, 2, 3)) is None
    assert rule.reason(recorded(None, None, None, 5)) is None
    assert rule.reason(recorded(None, 5, None, 6, None)) is None  # the last round was not evaluated
    assert (
        rule.reason(recorded(None, 5, None, 6, None, 6))
        == "test:loss has not improved for 3 rounds; it was 5 in round 2"
    )


def test_a_gain_must_exceed_the_smallest_one() -> None:
    accuracy = Criterion(METRICS["accuracy"], on_test=True)
    records = recorded(0.5, 0.55, 0.6, 0.61, name="accuracy")  # 0.05 in two rounds is not above 0.09; 0.1 is
    assert best_record(records, accuracy, 0.09) is records[2]
    assert best_record(records, accuracy) is records[3]
    assert best_record(recorded(None), accuracy) is None


def test_the_budget_counts_the_recorded_seconds() -> None:
    rule = TimeBudget(0.5)
    assert rule.reason(recorded(1, 1, seconds=14.9)) is None
    assert rule.reason(recorded(1, 1, seconds=15)) == "the budget of 0.5 minutes is used up"


def test_the_last_round_of_a_stopped_run_is_evaluated() -> None:
    run = fedsat.run(**{**TINY, "rounds": 12, "evaluate_every": 6, "minutes": 1e-6})
    assert [record.round for record in run.records] == [1]
    assert run.summary["accuracy"] == run.records[0].metrics["accuracy"]


def test_a_run_that_a_rule_stopped_is_not_resumed_for_more_rounds(tmp_path: Path) -> None:
    fedsat.run(**{**TINY, "rounds": 12, "minutes": 1e-6}, out=tmp_path)
    with pytest.raises(UsageError, match="to train for longer, repeat it with other limits"):
        fedsat.resume(tmp_path, rounds=20)


def test_the_best_model_by_the_metric_is_the_final_one(tmp_path: Path) -> None:
    run = fedsat.run(**STOPPING, restore_best=True, out=tmp_path)
    losses = [record.metrics["loss"] for record in run.records]
    best = losses.index(min(losses))
    assert 3 <= len(losses) == best + 3 < 30
    summary = read_summary(tmp_path)
    assert (
        summary["stopped"] == f"test:loss has not improved for 2 rounds; it was {losses[best]:.4g} in round {best + 1}"
    )
    assert summary["restored"] == {"round": best + 1, "metric": "test:loss", "value": losses[best]}
    assert summary["loss"] == losses[-1]
    assert run.setup.engine.evaluate([run.model], "expected")[0].loss == losses[best]
    stored = StoredRun.read(tmp_path)
    assert not stored.ended_early
    model, kept = stored.model(), stored.model("best.safetensors")
    assert all(bool((model[name] == kept[name]).all()) for name in kept)
    assert any(bool((tensor.cpu() != model[name]).any()) for name, tensor in run.training.server.model.params.items())


def test_a_resumed_run_stops_in_the_same_round(tmp_path: Path) -> None:
    settings = {**STOPPING, "restore_best": True, "checkpoint_every": 1}
    rounds = len(fedsat.run(**settings, out=tmp_path / "whole").records)
    for after in (rounds - 1, rounds):  # also if it was killed just before it would have ended
        killed_after(after, tmp_path / f"{after}", **settings)
        fedsat.resume(tmp_path / f"{after}")
        assert results(tmp_path / f"{after}") == results(tmp_path / "whole")


def test_a_run_continues_with_a_larger_budget(tmp_path: Path) -> None:
    run = fedsat.run(**TINY, minutes=1e-9, out=tmp_path)
    assert (len(run.records), run.stopped) == (1, "the budget of 1e-09 minutes is used up")
    with pytest.raises(UsageError, match=r"complete with 1 rounds \(the budget of 1e-09 minutes is used up\)"):
        fedsat.resume(tmp_path)
    fedsat.resume(tmp_path, minutes=60)
    fedsat.run(**TINY, out=tmp_path / "whole")
    model, whole = (StoredRun.read(folder).model() for folder in (tmp_path, tmp_path / "whole"))
    assert all(bool((model[name] == whole[name]).all()) for name in whole)


OWN_OPTIMIZER = "tests.algorithms.test_optimizer:Slower"


def test_a_user_defined_optimizer_is_used() -> None:
    run = {**TINY, "algorithm": "fedavg", "lr": 0.1}
    half, whole = fedsat.run(**run, optimizer=OWN_OPTIMIZER), fedsat.run(**{**run, "lr": 0.05})
    assert half.summary["loss"] == pytest.approx(whole.summary["loss"], rel=1e-6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"early_stop": "recall"}, "unknown metric of early_stop: 'recall'"),
        ({"restore_best": True}, "restore_best needs samples to choose the best model by"),
        ({"early_stop": "loss"}, "early_stop is 'loss', but there are no validation samples; .* or use 'test:loss'"),
        ({"select": "loss"}, "select is 'loss', but there are no validation samples"),
        ({"select": "test:recall", "validation": 0.2}, "unknown metric of select: 'recall'"),
        ({"select": "auroc", "validation": 0.2}, "select is 'auroc', which is not recorded; add it to metrics"),
        (
            {"select": "loss", "validation": 0.2, "algorithm": "fedavg", "privacy": "central", "dp_noise": 1.0},
            "select is 'loss', but clients report no results on validation samples, which would cost privacy",
        ),
        ({"lr_schedule": {"name": "cosine", "warmup": 6}}, "lr_schedule.warmup is 6; the run has 6 rounds"),
        ({"momentum": 0.5, "algorithm": "fedlada"}, r"fedlada does not take momentum \(here 0.5\)"),
        ({"clip": 1, "algorithm": "fedsat:paper"}, r"fedsat:paper does not take clip \(here 1\)"),
        ({"weight_decay": 1, "algorithm": "fedsat:paper"}, "does not take weight_decay"),
        ({"steps": 3, "algorithm": "fedsat:paper"}, r"does not take steps \(here 3\): eq. 6"),
        ({"optimizer": OWN_OPTIMIZER, "algorithm": "fedlada"}, r"fedlada does not take optimizer \(here .*:Slower\)"),
        ({"steps": 1, "stragglers": 0.5}, "stragglers do fewer steps than the others, but steps is 1"),
        ({"batch_size": "most"}, "batch_size is 'most'; it must be a whole number or 'all'"),
        ({"label_smoothing": 0.1, "algorithm": "fedlc"}, "'label_smoothing'; it is an option of cross-entropy, psl"),
    ],
)
def test_what_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        fedsat.prepare(fedsat.configure(**{**TINY, **settings}))


def test_a_schedule_over_all_rounds_fixes_their_number(tmp_path: Path) -> None:
    fedsat.run(**{**TINY, "rounds": 2}, lr_schedule="cosine", out=tmp_path)
    with pytest.raises(UsageError, match=r"cannot change its number of rounds: the cosine schedule extends over all 2"):
        fedsat.resume(tmp_path, rounds=4)
