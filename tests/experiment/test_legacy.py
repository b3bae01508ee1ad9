"""Names of the last release are still read, with a warning that says the new name."""

from __future__ import annotations

from pathlib import Path

import pytest

import fedsat
from fedsat.experiment.config import Config, read
from fedsat.experiment.legacy import modern_table

OLD = """
client_accuracy = "own"
[algorithm]
name = "fedsat-paper"
[algorithm.combination]
name = "median"
"""


def test_an_old_configuration_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(OLD)
    config = Config.of(read(path))  # no warning, as for a run that is only opened
    assert config.client_accuracy == "local"
    assert config.method == "fedsat+median"
    assert config.table()["algorithm"]["gamma"] == 1.0
    with pytest.warns(FutureWarning) as warned:
        read(path, warn_of_old=True)
    assert [str(warning.message).partition(": ")[2].partition(";")[0] for warning in warned] == [
        "client_accuracy = 'own' is now written 'local'",
        "algorithm.name = 'fedsat-paper' is now written 'fedsat:paper'",
        "algorithm.combination is now called algorithm.aggregator",
    ]


def test_an_old_setting_is_read_with_a_warning_that_names_the_new_one() -> None:
    with pytest.warns(FutureWarning, match=r"algorithm.combination is now called algorithm.aggregator"):
        config = fedsat.configure(**{"algorithm.combination": "median"})
    assert config.method == "fedsat+median"


def test_todays_names_stay() -> None:
    table = Config().table()
    assert modern_table(table) == table
