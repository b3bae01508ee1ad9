"""The terms on which a server works with real nodes: how long it waits, whom it needs, what it asks to be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from fedsat.options import Option, check


@dataclass(frozen=True)
class Terms:
    """What a federation of real nodes needs to be told besides the run itself."""

    min_fraction: Annotated[
        float, Option("share of the called clients that must answer for a round to count", above=0, at_most=1)
    ] = 0.5
    timeout: Annotated[float, Option("seconds that nodes have for an answer", above=0)] = 600.0
    retries: Annotated[int, Option("times that a round is tried again when too few answer", at_least=0)] = 2
    wait: Annotated[float, Option("seconds to wait for nodes before the first round", above=0)] = 300.0
    worker_counts: Annotated[
        Literal["each", "sums"],
        Option("workers tell their counts one by one, or masked so that only a client's sums can be read"),
    ] = "each"
    test: Annotated[
        Literal["server", "nodes"],
        Option("where the global model is tested: on the server's test set, or on samples that nodes hold out"),
    ] = "server"
    class_names: Annotated[
        str, Option("the classes, separated by commas, where the server has no dataset to know them from")
    ] = ""

    def __post_init__(self) -> None:
        check(self, "terms")
