"""What the server tells the nodes about the run: the classes, how samples are normalised, and a table's schema."""

from __future__ import annotations

from pathlib import Path

from fedsat import data
from fedsat.data.catalog import DATASETS, info
from fedsat.data.tables import unchanged
from fedsat.errors import UsageError
from fedsat.experiment.config import Config
from fedsat.flower.run_spec import RunSpec
from fedsat.flower.terms import Terms


def announce(config: Config, terms: Terms) -> tuple[RunSpec, data.Dataset | None, tuple[int, ...] | None]:
    """Return what all nodes are told, the server's own dataset, and the shape of a sample, where these are known."""
    if terms.test == "server":
        dataset = config.load_dataset()
        schema = "" if dataset.schema is None else dataset.schema.to_json()
        run = RunSpec(config.table(), dataset.class_names, False, dataset.mean, dataset.std, schema=schema)
        return run, dataset, dataset.input_shape
    if terms.schema:
        agreed = _read_schema(Path(terms.schema))
        moments = unchanged(agreed.width)
        return RunSpec(config.table(), agreed.classes, True, *moments, schema=agreed.to_json()), None, (agreed.width,)
    return RunSpec(config.table(), _class_names(config, terms), True), None, None


def _class_names(config: Config, terms: Terms) -> tuple[str, ...]:
    """Return the classes of a run whose server has no data."""
    names = tuple(name.strip() for name in terms.class_names.split(",") if name.strip())
    if names:
        return names
    if config.dataset_name in DATASETS:
        return info(config.dataset_name).class_names
    raise UsageError('the server has no dataset that defines the classes; set class_names = "cat,dog"')


def _read_schema(path: Path) -> data.Schema:
    try:
        return data.Schema.from_json(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the schema {path}: {error}") from error
