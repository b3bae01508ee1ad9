"""Runs: from a configuration to a trained model, metrics and files."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import Any

from fedsat.algorithms import Model
from fedsat.errors import FedsatError, UsageError
from fedsat.experiment.average import running_mean
from fedsat.experiment.callbacks import Callback, Callbacks, RoundFunction, as_callbacks
from fedsat.experiment.checkpoint import KEPT, Checkpoint, Checkpoints, RunState
from fedsat.experiment.client_states import StateFolder
from fedsat.experiment.config import Config
from fedsat.experiment.ending import final_evaluation, final_summary, model_card
from fedsat.experiment.folder import MODELS, RECORDS_SHA256, RunFolder
from fedsat.experiment.interrupt import STOPPED, signals_raise
from fedsat.experiment.saved import ModelInfo, ModelName
from fedsat.experiment.setup import Setup
from fedsat.experiment.stopping import best_record, repeated
from fedsat.experiment.store import identity
from fedsat.experiment.summary import final_measures, mean_over, round_record, summarise
from fedsat.metrics import (
    Detail,
    Metric,
    RoundRecord,
    compared,
    detail_of,
    is_imbalanced,
    measure,
    single,
)
from fedsat.metrics.thresholds import Thresholds
from fedsat.rounds import FederationState, Sampling, run_round, start, timed
from fedsat.rounds.local import Request
from fedsat.rounds.round import clients_of_round


@dataclass(repr=False)
class Run:
    """A run: its records, one per round, and its state."""

    setup: Setup
    state: RunState
    """Replaced as a whole at the end of a round, so that an interruption never finds half a round in it."""
    folder: RunFolder | None = None
    checkpoints: Checkpoints | None = None
    states: StateFolder | None = None
    """Where clients' states go that do not fit into memory; None on real nodes, which keep their own."""
    records: list[RoundRecord] = field(default_factory=list)
    status: str = "running"
    """running, completed, interrupted or failed."""
    stopped: str | None = None
    """Why the run ended before its last round, if `stop` was called."""

    def __repr__(self) -> str:
        config, summary = self.setup.config, self.summary
        found = f", accuracy {100 * summary['accuracy']:.1f} %" if "accuracy" in summary else ""
        return (
            f"<Run {config.method} on {config.dataset_label}, {self.training.rounds} of {config.rounds} rounds{found}>"
        )

    def _repr_html_(self) -> str:
        """Return the main results, as a table in notebooks."""
        summary, ten = self.summary, self.summary.get("last_ten", {})
        shown = [each for each in (*self._compared, *single(self.setup.metrics).values()) if each.name in summary]
        head = "".join(f"<th>{escape(each.heading)}</th>" for each in shown)
        rows = {"last round": summary, f"mean of {mean_over(self.training.rounds)}": ten} if shown else {}
        body = "".join(
            f"<tr><th>{name}</th>{''.join(f'<td>{each.written(values[each.name])}</td>' for each in shown)}</tr>"
            for name, values in rows.items()
        )
        return f"<table><caption>{escape(repr(self))}</caption><tr><th></th>{head}</tr>{body}</table>"

    @property
    def _compared(self) -> Sequence[Metric]:
        """The metrics that tables show of this run."""
        evaluation = self.state.evaluation
        return compared(evaluation is not None and is_imbalanced(evaluation.confusion))

    @property
    def training(self) -> FederationState:
        """The state of the training."""
        return self.state.training

    @property
    def model(self) -> Model:
        """The current global model; at the end of a run with `restore_best`, the best one."""
        best = self.state.best if self.restored is not None else None
        return best or self.training.server.model

    @property
    def restored(self) -> dict[str, Any] | None:
        """The round and metric of the best model, if the completed run has returned to it."""
        return self.selected if self.status == "completed" and self.setup.config.restore_best else None

    @property
    def selected(self) -> dict[str, Any] | None:
        """The round of the best model, and the metric that it was chosen by; None if there is none."""
        criterion = self.setup.criterion
        best = None if criterion is None else best_record(self.records, criterion)
        if criterion is None or best is None:
            return None
        return {"round": best.round, "metric": str(criterion), "value": criterion.value(best)}

    @property
    def notes(self) -> list[str]:
        """Notes for the user before the first round."""
        return [*self.setup.notes, *self.setup.remarks]

    @property
    def summary(self) -> dict[str, Any]:
        """The main results: those of the last round, the mean of the last ten rounds, and the best round."""
        return summarise(self.records)

    def stop(self, reason: str) -> None:
        """End the run after the current round, as completed; for callbacks."""
        self.stopped = reason

    @property
    def _sampling(self) -> Sampling:
        config = self.setup.config
        return Sampling(config.per_round, config.workers, config.seed)

    def request(self) -> Request | None:
        """Return what the next round will ask of the engine; None if too few clients will respond."""
        number, engine = self.training.rounds + 1, self.setup.engine
        sampled, responding = clients_of_round(number, engine.clients, self._sampling, self.setup.faults)
        if not engine.protection.can_aggregate(len(sampled), len(responding)):
            return None
        return Request(self.training.server, responding, self.training.states, number)

    def run_round(self, callbacks: Sequence[Callback] = ()) -> RoundRecord:
        """Run one round, evaluate the model if it is due, call the callbacks, and write the record.

        After an error or an interruption, the run is as it was before the round.
        """
        config, engine, before = self.setup.config, self.setup.engine, self.state
        training = replace(before.training, states=dict(before.training.states))
        result = run_round(engine, training, self._sampling, self.setup.faults)
        if self.states is not None:
            self.states.overflow(training.states, result.clients.tolist())
        record, after = round_record(result), replace(before, training=training)
        if config.average:
            averaged = running_mean(before.averaged, training.server.model, result.number, config.average)
            after = replace(after, averaged=averaged)
        if result.number % config.evaluate_every == 0 or result.number == config.rounds:
            with timed(result.seconds, "evaluate", engine.device):
                after = self._evaluate(after, record)
        for name, value in engine.notes().items():
            setattr(record, name, value)
        if (ledger := self.setup.ledger) is not None:
            record.epsilon = ledger.epsilon(result.number, repeated([*self.records, record]))
        record.seconds = {name: round(spent, 6) for name, spent in result.seconds.items()}
        self.records.append(record)
        self.state = after
        try:
            for callback in callbacks:
                callback.round(self, record)
            if self.stopped is not None and not record.evaluated:  # the last model needs metrics
                self.state = after = self._evaluate(after, record)
        except BaseException:
            del self.records[before.training.rounds :]
            self.state = before
            raise
        self._keep(better=after.best is not before.best)
        return record

    def _keep(self, better: bool) -> None:
        """Write the round's record, and a checkpoint if one is due."""
        if self.folder is not None:
            self.folder.record(self.records)
            if better and self.state.best is not None:
                self.save_model("best", self.state.best)
        if self.checkpoints is not None and self.checkpoints.due(self.training):
            self.save_checkpoint()

    def save_model(self, name: ModelName, model: Model) -> None:
        """Write one of the run's models, with all that its use needs besides the weights."""
        assert self.folder is not None
        config, rounds = self.setup.config, self.training.rounds
        chosen = self.selected if name == "best" else self.restored if name == "last" else None
        info = ModelInfo(
            name,
            chosen["round"] if chosen else rounds,
            config.method,
            config.model,
            self.setup.inputs,
            tuple(self.setup.engine.class_names),
            selected_by=chosen["metric"] if chosen else "",
            average=config.average if name == "averaged" else 0.0,
            run=identity(config.table()),
            data=self.setup.fingerprint,
            thresholds=self._thresholds(model),
        )
        self.folder.save_model(model, MODELS[name], info.texts())

    def _thresholds(self, model: Model) -> Thresholds | None:
        """Return a final model's thresholds by the validation samples; nodes are not asked for so much again."""
        if not self.has_thresholds:
            return None
        held = self.setup.engine.validate(model, Detail(scores=True))
        return None if held is None or held.histograms is None else Thresholds.of(held.histograms)

    @property
    def has_thresholds(self) -> bool:
        """Whether saved models have thresholds."""
        return self.status == "completed" and self.setup.federation is not None and self.setup.validates

    def save_checkpoint(self) -> None:
        """Write a checkpoint, if the run has a folder and checkpoints are wanted."""
        setup = self.setup
        if self.folder is None or self.checkpoints is None:
            return
        self.folder.settle()
        self.checkpoints.write(
            Checkpoint(
                state=self.state,
                reach=self.folder.reach,
                config=setup.config.table(),
                federation=setup.fingerprint,
                lanes=getattr(setup.engine, "lanes", 1),
                made_with=setup.environment,
                nodes=setup.engine.remembered(),
            )
        )

    def _evaluate(self, state: RunState, record: RoundRecord) -> RunState:
        """Evaluate the models, add their metrics to the record, and return the new state; it keeps the best model."""
        engine, server = self.setup.engine, state.training.server
        others = engine.algorithm.reported_models(server)
        if state.averaged is not None:
            others = {**others, "averaged": state.averaged}
        how, detail = self.setup.config.client_accuracy, detail_of(self.setup.metrics)
        first, *rest = engine.evaluate([server.model, *others.values()], how, detail)
        record.metrics = measure(first, self.setup.metrics)
        record.models = {name: measure(one, self.setup.metrics) for name, one in zip(others, rest, strict=True)}
        state = replace(state, evaluation=replace(first, predict=None))
        if self.setup.validates:
            held = engine.validate(server.model, detail_of(self.setup.validated_metrics))
            record.validation = {} if held is None else measure(held, self.setup.validated_metrics)
        criterion = self.setup.criterion
        if criterion is None or best_record([*self.records, record], criterion) is not record:
            return state
        return replace(state, best=server.model)

    def close(self, status: str, error: str | None = None, *, for_more: bool = True) -> None:
        """Write the last files; `status` is completed, interrupted or failed.

        An interrupted run leaves a checkpoint. So does a completed one if writing it is fast enough, unless nobody will
        resume it (`for_more`).
        """
        self.status = status
        del self.records[self.training.rounds :]  # an interrupted round may already have its record
        if self.folder is None:
            return
        self.folder.record(self.records)
        self.folder.settle()
        if status == "interrupted" or (status == "completed" and for_more and self._affords_a_last_checkpoint()):
            self.save_checkpoint()
        if self.state.best is not None:
            self.save_model("best", self.state.best)
        if self.state.averaged is not None:
            self.save_model("averaged", self.state.averaged)
        summary = final_summary(self, error)
        if (final := final_evaluation(self, self.model)) is not None:
            self.folder.save_counts(final)
            summary["final"] = final_measures(final, self.setup.metrics, self.setup.config.seed)
        self.save_model("last", self.model)
        self.folder.save_card(model_card(self, summary, final).document())
        summary[RECORDS_SHA256] = self.folder.reach.digest.hexdigest()
        self.folder.finish(summary)
        if self.checkpoints is not None:
            self.checkpoints.end(keep=KEPT if status != "completed" else 1 if for_more else 0)

    def _affords_a_last_checkpoint(self) -> bool:
        return self.checkpoints is not None and self.checkpoints.due_at_the_end(self.training)


def prepare(config: Config, out: Path | None = None) -> Run:
    """Return a run before its first round. With `out`, it writes its files there."""
    if out is None and config.track:
        raise UsageError("track needs a folder for the files, such as out='runs/NAME'")
    setup = Setup.of(config)
    state = RunState(start(setup.engine))
    if out is None:
        return Run(setup, state, states=StateFolder(None, config.state_memory, setup.device))
    folder = RunFolder.create(out, config.to_toml(), setup.inputs.schema)
    checkpoints = Checkpoints.of(out, config.checkpoint_every)
    return Run(setup, state, folder, checkpoints, StateFolder(out, config.state_memory, setup.device))


def train(run: Run, callbacks: Callbacks = (), *, show: RoundFunction | None = None, for_more: bool = True) -> Run:
    """Run the remaining rounds.

    When training fails or is interrupted (Ctrl-C, SIGTERM, SIGHUP), the files are completed with the rounds so far, and
    the error is raised again. `show` is called with every record that has been written, for a progress display.
    `for_more` leaves a checkpoint at the end, from which `resume` can continue to more rounds.
    """
    for _ in round_by_round(run, callbacks, show=show, for_more=for_more):
        pass
    return run


def round_by_round(
    run: Run, callbacks: Callbacks = (), *, show: RoundFunction | None = None, for_more: bool = True
) -> Generator[None]:
    """Train a run as `train` does, with a pause before each round, in which other runs may have their turn.

    Closing the generator interrupts the run.
    """
    active = [*as_callbacks(callbacks), *run.setup.stop_rules, *run.setup.trackers]
    try:
        with signals_raise():
            for callback in active:
                callback.start(run)
            while run.training.rounds < run.setup.config.rounds and run.stopped is None:
                yield
                record = run.run_round(active)
                if show is not None:
                    show(run, record)
            run.close("completed", for_more=for_more)
    except (*STOPPED, GeneratorExit):
        run.close("interrupted")
        raise
    except Exception as error:
        with suppress(FedsatError):  # the user must see the first error
            run.close("failed", str(error))
        raise
    finally:
        for callback in active:
            callback.end(run)
