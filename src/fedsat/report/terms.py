"""Explanations of terms that newcomers may not know, one line each."""

from __future__ import annotations

from collections.abc import Sequence

from fedsat.report.groups import Group

PARTITIONS = {
    "iid": "identically distributed: every client holds a random sample of the data",
    "quantity": "quantity skew: clients hold different numbers of samples, with the same class proportions",
    "ls": "label skew: clients hold the classes in different proportions",
    "lsmc": "label skew with missing classes: every client holds only a few classes, in different proportions",
    "lqsmc": "label and quantity skew with missing classes: clients also hold different numbers of classes and samples",
    "hsu": "label skew: clients of equal size hold the classes in different proportions",
    "shards": "label skew: every client holds a few shards of the data sorted by class",
    "natural": "the clients that the data come from",
}
TRAFFIC = "MB: megabytes (10⁶ bytes) downloaded and uploaded in a run: models and what the method adds to them"
WORKER = "worker: a client that evaluates the models of others on its own samples and reports counts"
EFFECTIVE_CLIENTS = (
    "Effective clients: the number of equally weighted clients whose mean would vary as much. "
    "If all weights are equal, it is the number of clients."
)


def explain_terms(groups: Sequence[Group]) -> list[str]:
    """Explanations of the terms that occur in the table of a comparison."""
    names = dict.fromkeys(str(group.first.table["partition"]["name"]) for group in groups)
    lines = [f"{name}: {PARTITIONS[name]}." for name in names if name in PARTITIONS]
    if any(record.bytes_workers for group in groups for record in group.first.records):
        return [*lines, f"{TRAFFIC}, as well as models and counts for workers.", f"{WORKER}."]
    return [*lines, f"{TRAFFIC}."]
