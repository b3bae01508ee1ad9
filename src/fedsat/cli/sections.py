"""The sections of a help page, and the settings of a run in each.

Options are made from the configuration; this module only defines their order. It does not import torch, so that the
shell can complete options quickly.
"""

from __future__ import annotations

DATA, FEDERATION, METHOD, TRAINING = "Data", "Federation", "Method", "Training"
OPTIMIZER, STOPPING = "Local optimizer", "Stopping"
COMPARISON, SEARCH, FAULTS, EVALUATION = "Comparison", "Search", "Faults and attacks", "Evaluation"
PRIVACY = "Privacy"
NODES, MACHINE, OUTPUT, OTHER = "Real nodes", "Machine", "Output", "Options"

SECTIONS: dict[str, tuple[str, ...]] = {
    DATA: (
        "dataset",
        "partition",
        "classes_per_client",
        "beta",
        "image_size",
        "imbalance",
        "holdout",
        "augment",
        "label",
        "client",
        "test_column",
        "drop",
        "hashed",
    ),
    FEDERATION: ("clients", "per_round", "workers", "validation", "worker_samples", "report_at_least"),
    METHOD: ("algorithm", "with_", "without"),
    COMPARISON: (),
    SEARCH: (),
    TRAINING: ("model", "rounds", "epochs", "steps", "batch_size", "lr", "lr_schedule", "warmup", "average", "seed"),
    OPTIMIZER: ("optimizer", "momentum", "nesterov", "weight_decay", "clip"),
    STOPPING: ("select", "early_stop", "patience", "min_gain", "restore_best", "minutes"),
    NODES: ("min_fraction", "timeout", "retries", "wait", "max_weight", "worker_counts", "test", "schema", "look"),
    FAULTS: ("dropout", "stragglers", "attack", "attackers", "max_norm"),
    PRIVACY: ("secure_aggregation", "privacy", "dp_clip", "dp_noise", "dp_counts", "dp_samples", "budget"),
    EVALUATION: ("evaluate_every", "client_accuracy", "metrics"),
    MACHINE: ("engine", "compile", "device", "precision", "state_memory"),
    OUTPUT: ("checkpoint_every", "track"),
    OTHER: ("set_",),
}
"""The sections in order. Commands add their own options to them."""

ORDER = {setting: place for place, setting in enumerate(name for names in SECTIONS.values() for name in names)}


def section_of(setting: str) -> str:
    """Return the section that shows a setting."""
    return next((section for section, settings in SECTIONS.items() if setting in settings), OTHER)


def flag(setting: str) -> str:
    """Return a setting as an option of the command line: `per_round` is `--per-round`."""
    return f"--{setting.strip('_').replace('_', '-')}"
