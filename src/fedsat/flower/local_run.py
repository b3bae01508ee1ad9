"""A run on real nodes that are started on this machine, and started again if their processes end."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsat import data
from fedsat.data.catalog import has_name
from fedsat.errors import FedsatError
from fedsat.experiment.config import Config
from fedsat.experiment.folder import CONFIG, NODE_STATES, RECORDS, SCHEMA, SUMMARY, read_records, read_summary
from fedsat.flower.agreement import Agreement
from fedsat.flower.federation import LocalFederation
from fedsat.flower.presence import Status
from fedsat.flower.terms import Terms
from fedsat.metrics import RoundRecord
from fedsat.report.look import REPORT, Look

LOGS = "flower-logs"
"""Subfolder of a run for what Flower's processes print."""

DERIVED = ("class_names", "schema", "replace")
"""Terms that follow from the dataset, and from the fact that all nodes belong to whoever starts the run."""

ERROR = "fedsat: "
"""Marks the errors of the ServerApp in its log."""

PAUSE = 0.2
"""Seconds between checks of the server's records and the processes."""

GRACE = 5.0
"""Seconds in which Flower learns of the end of a ServerApp. It notices one that was killed only after a minute."""

REVIVALS = 100
"""How often nodes are started again, all together, before the run ends with an error."""


class EndedError(FedsatError):
    """Processes that the run needs have ended. It can continue with new ones."""


@dataclass(frozen=True)
class LocalRun:
    """The run in a folder: its first attempt, or one that continues it."""

    folder: Path
    config: Config
    terms: dict[str, Any]
    """Those that the user chose."""
    dataset: data.Dataset

    def carry_out(
        self, federation: LocalFederation, on_round: Callable[[RoundRecord], None], tell: Callable[[str], None]
    ) -> None:
        """Start the nodes, submit the run, and follow it until it completes; raise an error if it does not.

        `on_round` is called with every round as the server records it, `tell` with what happened to nodes.
        """
        before, logged, began = _stamp(self.folder / SUMMARY), len(federation.log("run")), time.time()
        start_nodes(federation, self.config, self.folder / NODE_STATES)
        terms = Terms(**self.terms, **self._agreed(federation.folder))
        process = submit(federation, self.config, terms, self.folder)
        shown, running, revived = rounds_in(self.folder), True, 0
        while running:
            written = _stamp(self.folder / SUMMARY) not in (before, None)
            running = process.poll() is None and not written
            records = recorded(self.folder)
            for record in records[shown:]:
                on_round(record)
            shown = max(shown, len(records))
            if running:
                if self._lost_server(began, before):
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(GRACE)
                        continue
                    raise EndedError("the ServerApp has ended")
                revived += self._look_after(federation, tell)
                if revived > REVIVALS:
                    raise FedsatError(f"nodes have ended {revived} times; their logs are in {self.folder / LOGS}")
                time.sleep(PAUSE)
        self._check_completed(read_summary(self.folder) if written else {}, federation, logged)

    def look(self, federation: LocalFederation) -> Look:
        """Start the nodes, and only look at their data."""
        start_nodes(federation, self.config)
        (self.folder / REPORT).unlink(missing_ok=True)
        terms = Terms(**{**self.terms, "look": True, **self._agreed(federation.folder)})
        process = submit(federation, self.config, terms, self.folder)
        while not (self.folder / REPORT).exists():
            if process.poll() is not None and not (self.folder / REPORT).exists():
                raise _failed("the look failed", federation.log("run").splitlines())
            time.sleep(PAUSE)
        return Look.read(self.folder)

    def _agreed(self, work: Path) -> dict[str, Any]:
        """Return the terms that the user does not choose, such as a table's schema or the class names."""
        if self.dataset.schema is None:
            return {"replace": "all", "class_names": ",".join(self.dataset.class_names)}
        file = work / SCHEMA
        file.write_text(self.dataset.schema.to_json(), encoding="utf-8")
        return {"replace": "all", "schema": str(file)}

    def _lost_server(self, began: float, before: tuple[int, int] | None) -> bool:
        """Whether the process of the ServerApp has ended without a summary."""
        status = Status.read(self.folder)
        if status is None or status.time < began or status.running is not False:
            return False
        return _stamp(self.folder / SUMMARY) in (before, None)

    def _look_after(self, federation: LocalFederation, tell: Callable[[str], None]) -> int:
        """Start nodes again that have ended, and return how many; raise an error if the server has ended."""
        if lost := [name for name in federation.ended() if name in federation.SERVER]:
            raise EndedError(f"the process {lost[0]!r} has ended")
        revived = federation.revive()
        for name in revived:
            tell(f"{name} has ended and is started again")
        return len(revived)

    def _check_completed(self, summary: dict[str, Any], federation: LocalFederation, logged: int) -> None:
        """Raise an error if the run did not complete."""
        if summary.get("status") == "completed":
            return
        if any(name in federation.SERVER for name in federation.ended()):
            raise EndedError("the SuperLink has ended")
        if summary.get("status") == "failed":
            raise FedsatError(f"{summary['error']}; {summary['rounds']} rounds are saved in {self.folder}")
        lines = federation.log("run")[logged:].splitlines()
        if not any(ERROR in line for line in lines) and (summary or (self.folder / CONFIG).exists()):
            raise EndedError("the server has ended")
        raise _failed("the run did not start", lines)


def _failed(what: str, lines: list[str]) -> FedsatError:
    """Return an error with what the ServerApp logged last."""
    errors = [line.partition(ERROR)[2] for line in lines if ERROR in line]
    last = " ".join([line.strip() for line in lines if line.strip()][-3:])
    return FedsatError(f"{what}: {errors[-1] if errors else last or 'Flower printed no reason'}")


def recorded(folder: Path) -> list[RoundRecord]:
    """Return the rounds that a run has recorded so far."""
    return read_records(folder) if (folder / RECORDS).exists() else []


def rounds_in(folder: Path) -> int:
    """Return how many rounds a run has recorded so far."""
    return len(recorded(folder))


def _stamp(path: Path) -> tuple[int, int] | None:
    """Return what changes when a file is replaced; None if there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


def start_nodes(federation: LocalFederation, config: Config, states: Path | None = None) -> None:
    """Start one node per client, with its part of the dataset and an agreement that accepts this run.

    Clients' states are kept in subfolders of `states`, or in memory.
    """
    dataset = _for_nodes(config.dataset_name)
    agreement = federation.folder / "agreement.toml"
    agreement.write_text(Agreement.covering(config).to_toml(), encoding="utf-8")
    for client in range(config.clients):
        share = {"dataset": dataset, "partition-id": client, "num-partitions": config.clients}
        share["agreement"] = str(agreement)
        if states is not None:
            share["state"] = str(states.resolve() / f"node-{client}")
        federation.start_node(f"node-{client}", share)


def _for_nodes(dataset: str) -> str:
    """Return the dataset's name, or its absolute path, because nodes run in folders of their own."""
    if has_name(dataset) or not Path(dataset).expanduser().exists():
        return dataset
    return str(Path(dataset).expanduser().resolve())


def submit(federation: LocalFederation, config: Config, terms: Terms, folder: Path) -> subprocess.Popen[bytes]:
    """Submit a run to the nodes. The process ends with the run."""
    file = federation.folder / CONFIG
    file.write_text(config.to_toml(), encoding="utf-8")
    return federation.submit({"config": str(file), "out": str(folder.resolve()), **vars(terms)})
