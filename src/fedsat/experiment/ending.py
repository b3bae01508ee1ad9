"""What is written about a run when it ends: its last evaluation, `summary.json`, and the model card."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fedsat.algorithms import Model
from fedsat.experiment.card import Card
from fedsat.metrics import Detail, Evaluation, known

if TYPE_CHECKING:
    from fedsat.experiment.run import Run


def final_evaluation(run: Run, model: Model) -> Evaluation | None:
    """Return the evaluation of a final model, with the scores; on real nodes, the last, with what metrics need."""
    if run.setup.federation is None:
        return run.state.evaluation
    if run.status != "completed" or run.state.evaluation is None:
        return None
    return run.setup.engine.evaluate([model], run.setup.config.client_accuracy, Detail(scores=True))[0]


def final_summary(run: Run, error: str | None) -> dict[str, Any]:
    """Return the contents of `summary.json`."""
    evaluation = run.state.evaluation
    summary: dict[str, Any] = {"status": run.status, **({"error": error} if error else {})}
    for name in ("stopped", "selected", "restored"):
        if (value := getattr(run, name)) is not None:
            summary[name] = value
    summary |= {"method": run.setup.config.method, **run.summary}
    if run.setup.metrics:
        summary["metrics"] = [each.description() for each in run.setup.metrics]
    if evaluation is not None:
        summary["confusion"] = evaluation.confusion.tolist()
        summary["client_accuracies"] = known(evaluation.client_accuracies.round(4))
    summary["class_names"] = list(run.setup.engine.class_names)
    if run.setup.federation is None:
        summary["data"] = "on the nodes"
    summary["made_with"] = run.setup.environment
    return summary


def model_card(run: Run, summary: Mapping[str, Any], final: Evaluation | None) -> Card:
    """Return the model card, about the model that a user gets by default; `final` is that of the last model."""
    setup, chosen, best = run.setup, run.selected, run.state.best
    serves_best = chosen is not None and best is not None
    number = chosen["round"] if chosen else run.training.rounds
    found = next((record.metrics for record in run.records if record.round == number), {})
    evaluation = final
    if serves_best and best is not None:
        evaluation = final_evaluation(run, best) if setup.federation is not None else None
    return Card(
        summary,
        setup.config.table(),
        setup.inputs,
        "best" if serves_best else "last",
        evaluation,
        found,
        setup.federation,
        run.has_thresholds,
        sum(tensor.numel() for tensor in run.model.params.values()),
    )
