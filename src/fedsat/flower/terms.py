"""Settings of a federation of real nodes: timeouts, how many nodes are needed, and what they report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from fedsat.errors import UsageError
from fedsat.options import Option, check


@dataclass(frozen=True)
class Terms:
    """The settings that a federation of real nodes has in addition to those of the run."""

    min_fraction: Annotated[
        float,
        Option(
            "share of the sampled clients that must respond for a round to count; 1: all nodes, to every request",
            above=0,
            at_most=1,
        ),
    ] = 0.5
    timeout: Annotated[float, Option("seconds that nodes have to reply", above=0)] = 600.0
    retries: Annotated[int, Option("how often nodes are asked again when too few respond", at_least=0)] = 2
    wait: Annotated[float, Option("seconds to wait for nodes before the first round", above=0)] = 300.0
    worker_counts: Annotated[
        Literal["each", "sums"],
        Option("workers report their counts individually, or masked so that only the sum per client is readable"),
    ] = "each"
    test: Annotated[
        Literal["server", "nodes"],
        Option("where the global model is tested: on the server's test set, or on samples that nodes hold out"),
    ] = "server"
    class_names: Annotated[
        str, Option("class names separated by commas, needed if the server has no dataset that defines them")
    ] = ""
    max_weight: Annotated[
        float,
        Option(
            "a client counts as having at most this many times the median number of samples; 0: no limit",
            at_least=0,
        ),
    ] = 20.0
    schema: Annotated[
        str, Option("file with the schema of the nodes' tables, needed if the server has no dataset that defines it")
    ] = ""
    replace: Annotated[
        str,
        Option("numbers of clients, separated by commas, whose place a node with another key may take; or: all"),
    ] = ""
    look: Annotated[
        bool, Option("only ask the nodes once how many samples of each class they have, and report it; train nothing")
    ] = False

    def __post_init__(self) -> None:
        check(self, "terms")
        if 0 < self.max_weight < 1:
            raise UsageError(f"terms.max_weight is {self.max_weight:g}; it must be 0 (no limit) or at least 1")
        self.replaceable(1)

    def replaceable(self, clients: int) -> frozenset[int]:
        """Return the clients whose place a node with another key may take."""
        if self.replace == "all":
            return frozenset(range(clients))
        try:
            return frozenset(int(number) for number in self.replace.split(",") if number.strip())
        except ValueError:
            raise UsageError(
                f"terms.replace is {self.replace!r}; it must be numbers of clients such as 2,5, or all"
            ) from None
