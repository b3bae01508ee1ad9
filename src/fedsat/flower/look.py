"""A look at the nodes' data before training: the report of `fedsat look`, from counts that the nodes send once.

A node reports nothing about classes of which it has few samples (`report_at_least` of the run or of its agreement). It
may also refuse to report at all (`histograms = false`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedsat.errors import FedsatError, UsageError
from fedsat.experiment.config import Config
from fedsat.flower.announcement import announce
from fedsat.flower.exchange import Exchange
from fedsat.flower.members import Members
from fedsat.flower.messages import Hello, NodeInfo
from fedsat.flower.terms import Terms
from fedsat.flower.transport import Transport
from fedsat.report.look import Look, division_of
from fedsat.report.suggestions import Division

NAMED = 10
"""Clients that leave out samples are named one by one up to this number."""


def look_at_nodes(transport: Transport, config: Config, terms: Terms) -> Look:
    """Ask the nodes for their class counts, as a run with `client_accuracy = "test-split"` does, and report them.

    The request has no run ID, so that nodes keep nothing of it on disk.
    """
    _check(config, terms)
    run, dataset, shape = announce(replace(config, client_accuracy="test-split"), terms)
    members = Members(Exchange(transport, terms.timeout), Hello(run), config.clients, shape)
    members.wait_for_answers(terms.wait)
    members.agree_on_shape()
    missing = [f"node {node} sent no counts: {why}" for node, why in members.turned_away.items()]
    clients = sorted(members.nodes)
    if len(clients) + len(missing) < config.clients:
        silent = config.clients - len(clients) - len(missing)
        missing.append(f"{silent} of {config.clients} nodes did not answer within {terms.wait:g} s")
    infos = {client: members.infos[client] for client in clients}
    counts = np.array([info.class_counts["class_counts"].numpy() for info in infos.values()])
    if not counts.any():
        nothing = "every class of every node is too rare to be reported" if infos else "no node sent its counts"
        raise FedsatError("; ".join([nothing, *missing]))
    tested = None if dataset is None else np.bincount(dataset.test.labels, minlength=dataset.classes)
    division = division_of(config, counts, run.class_names, tested)
    division = replace(division, per_round=min(config.per_round, len(infos)), partial=_partial(infos))
    return Look(
        f"{len(infos)} of {config.clients} nodes",
        division,
        (*missing, *_numbering(clients), *_left_out(clients, division)),
    )


def _check(config: Config, terms: Terms) -> None:
    """Refuse a look in a federation that keeps exact counts from the server."""
    if config.privacy.active or terms.worker_counts == "sums":
        what = "the run has differential privacy" if config.privacy.active else "worker_counts is 'sums'"
        raise UsageError(
            f"{what}, so that the server cannot read the class counts of a node, for which a look would ask; leave out "
            "look, or, if the owners of the nodes agree, look without this setting"
        )


def _partial(infos: Mapping[int, NodeInfo]) -> NDArray[np.bool_]:
    """Return whether a node has samples that are not in its counts."""
    counted = [int(info.class_counts["class_counts"].sum()) for info in infos.values()]
    held = [info.samples + info.validation for info in infos.values()]
    return np.array(counted) < np.array(held)


def _left_out(clients: list[int], division: Division) -> Iterator[str]:
    """Say of which classes nodes may have left out samples: those of which they report none.

    The number is left out as well. If there is only one such class, it would be its count.
    """
    rows = np.flatnonzero(division.leaves_out)
    for row in rows[:NAMED]:
        classes = division.classes(np.flatnonzero(division.unknown[row]))
        yield f"client {clients[row]} leaves out samples, because their classes are rare there (possible: {classes})"
    if len(rows) > NAMED:
        yield f"{len(rows) - NAMED} more clients leave out samples"


def _numbering(clients: list[int]) -> list[str]:
    """Say which clients the columns are, if some are missing."""
    if clients == list(range(len(clients))):
        return []
    return [f"the columns are the clients {', '.join(map(str, clients))}"]
