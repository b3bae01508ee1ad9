"""What the server knows about the nodes and needs after a restart: a part of every checkpoint, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedsat.errors import UsageError
from fedsat.experiment.sealed import DamagedError
from fedsat.flower.messages import NodeInfo
from fedsat.flower.run_spec import RunSpec
from fedsat.flower.terms import Terms
from fedsat.tree import Tree

FIXED = ("test", "worker_counts", "max_weight")
"""Terms that must stay the same when a run is resumed."""


@dataclass(frozen=True)
class Known:
    """The run that the nodes were told, and what they said about themselves."""

    run: RunSpec
    terms: Mapping[str, Any]
    shape: tuple[int, ...]
    infos: Mapping[int, NodeInfo] = field(default_factory=dict)
    labels: Mapping[int, Tensor] = field(default_factory=dict)
    """T of every worker that has sent it."""
    owners: Mapping[int, int] = field(default_factory=dict)
    """The last node of each client."""

    def to_json(self) -> dict[str, Any]:
        """Return plain values; numbers are exact."""
        return {
            "run": self.run.text(),
            "terms": {name: self.terms[name] for name in FIXED},
            "shape": list(self.shape),
            "infos": {str(client): _plain(info) for client, info in self.infos.items()},
            "labels": {str(worker): labels.tolist() for worker, labels in self.labels.items()},
            "owners": {str(client): node for client, node in self.owners.items()},
        }

    @staticmethod
    def of(stored: Mapping[str, Any]) -> Known:
        """Read what `to_json` returned; another version of fedsat may have written something else."""
        try:
            return Known(
                RunSpec.of(stored["run"]),
                {name: stored["terms"][name] for name in FIXED},
                tuple(stored["shape"]),
                {int(client): _info(info) for client, info in stored["infos"].items()},
                {int(worker): torch.tensor(labels) for worker, labels in stored["labels"].items()},
                {int(client): int(node) for client, node in stored.get("owners", {}).items()},
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DamagedError(
                "its checkpoint is damaged, or of another version of fedsat: what the server knows about the nodes "
                f"cannot be read ({type(error).__name__}: {error})"
            ) from error

    def check(self, run: RunSpec, terms: Terms) -> None:
        """Refuse to continue with other classes, another schema, or other terms."""
        for name in FIXED:
            if self.terms[name] != getattr(terms, name):
                raise UsageError(
                    f"{name} was {self.terms[name]!r} and is {getattr(terms, name)!r}; a run cannot be resumed with "
                    "other terms"
                )
        if (self.run.class_names, self.run.schema) != (run.class_names, run.schema):
            raise UsageError("the run cannot be resumed: the classes, or the schema, have changed since its start")


def _plain(info: NodeInfo) -> dict[str, Any]:
    trees = {name: _lists(getattr(info, name)) for name in ("moments", "class_counts")}
    return {**vars(info), "shape": list(info.shape), **trees}


def _lists(tree: Tree) -> dict[str, Any]:
    return {name: tensor.tolist() for name, tensor in tree.items()}


def _info(stored: Mapping[str, Any]) -> NodeInfo:
    moments = {name: torch.tensor(one, dtype=torch.float64) for name, one in stored["moments"].items()}
    counts = {name: torch.tensor(one, dtype=torch.int64) for name, one in stored["class_counts"].items()}
    return NodeInfo(**{**stored, "shape": tuple(stored["shape"]), "moments": moments, "class_counts": counts})
