"""Settings that exclude each other, or that have no effect without another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedsat.algorithms import SGD, optimizers
from fedsat.errors import UsageError
from fedsat.rounds import Attack, attacks, privacies
from fedsat.rounds.ledger import Budget
from fedsat.rounds.privacy import refuse_privacy
from fedsat.rounds.secure import refuse_secure, weighs_alone

if TYPE_CHECKING:
    from fedsat.experiment.config import Config


def check_combination(config: Config) -> None:
    """Refuse a configuration whose settings, each of which is valid, do not go together."""
    _check_clients(config)
    _check_attack(config)
    _check_training(config)
    _check_privacy(config)


def _check_clients(config: Config) -> None:
    if config.per_round > config.clients:
        raise UsageError(
            f"per_round is {config.per_round}, but there are only {config.clients} clients; set it to at most "
            f"{config.clients}"
        )
    if 0 < config.max_norm < 1:
        raise UsageError(
            f"max_norm is {config.max_norm:g}; it must be 0 (no limit) or at least 1, or it could refuse every update"
        )
    if config.stragglers and (config.steps or config.epochs) == 1:
        what = "steps" if config.steps else "epochs"
        raise UsageError(f"stragglers do fewer {what} than the others, but {what} is 1, so set {what} to at least 2")


def _check_attack(config: Config) -> None:
    if (type(config.attack) is Attack) != (config.attackers == 0):
        raise UsageError(
            f"attack is {attacks.name_of(config.attack)!r} and attackers is {config.attackers:g}; "
            "give both, such as --attack sign-flip --attackers 0.2, or neither"
        )


def _check_training(config: Config) -> None:
    """Refuse local training under which the method's formulas do not hold, and settings that have no effect."""
    given = {**vars(config.optimizer), "steps": config.steps}
    if type(config.optimizer) is not SGD:
        given["optimizer"] = optimizers.name_of(config.optimizer)
    for name, why in config.algorithm.refuses.items():
        if value := given.get(name):
            here = value if isinstance(value, str) else f"{value:g}"
            raise UsageError(f"{config.method} does not take {name} (here {here}): {why}")
    if config.lr_schedule.warmup >= config.rounds:
        raise UsageError(f"lr_schedule.warmup is {config.lr_schedule.warmup}; the run has {config.rounds} rounds")


def _check_privacy(config: Config) -> None:
    """Refuse methods that cannot be private, and a budget that nothing spends."""
    refuse_privacy(config.privacy, config.algorithm, config.method)
    if config.budget and not config.privacy.active:
        raise UsageError("budget is set, but privacy is 'none'; use --privacy local or --privacy central")
    if config.report_at_least > 1 and config.privacy.noisy_reports:
        raise UsageError(
            f"report_at_least is {config.report_at_least}, but privacy is {privacies.name_of(config.privacy)!r}, whose "
            "noise hides rare classes already; remove report_at_least"
        )
    Budget.of(config.budget)
    if config.secure_aggregation:
        _check_secure(config)


def _check_secure(config: Config) -> None:
    """Refuse what needs more than the sum of the updates."""
    refuse_secure(config.algorithm, config.method, config.per_round, config.workers)
    if config.privacy.active and weighs_alone(config.algorithm.weighting):
        raise UsageError(
            f"privacy is {privacies.name_of(config.privacy)!r}, but with secure aggregation, clients of "
            f"{config.method} scale their updates by exact counts of their samples; use --without pwa"
        )
    if config.max_norm not in (0, type(config).max_norm):
        raise UsageError(
            f"max_norm is {config.max_norm:g}, but with secure aggregation, the server sees no single update whose "
            "length it could check; remove max_norm"
        )
