"""The study of attacks and defences: its rows, what it skips, and its tables."""

from __future__ import annotations

from pathlib import Path

import pytest

import fedsat
from fedsat.experiment.config import Config
from fedsat.metrics import RoundRecord
from reproduction.robustness import Absent, Case, append, done, run_case, shares
from reproduction.robustness_page import DEFENCES, MARK, Row, glance, read, seeds_of, tables, write_page


def case(defence: str, attack: str, attackers: float) -> Case:
    return Case("mnist-mini", "mlp", 1, "LSMC n=4", defence, attack, attackers, 0)


def test_every_defence_can_be_configured() -> None:
    for defence in DEFENCES:
        config = case(defence, "scale", 0.2).config
        assert isinstance(config, Config)
        assert config.method == defence
    assert isinstance(case("fedavg", "absent", 0.2).config.attack, Absent)


def test_absent_attackers_are_all_refused() -> None:
    row = run_case(case("fedavg", "absent", 0.2), "cpu", deadline=float("inf"))
    assert row is not None
    assert (row["attackers_weight"], row["attackers_left_out"], row["honest_left_out"]) == (0, 1, 0)


def test_only_a_backdoor_has_a_success() -> None:
    row = run_case(case("fedavg", "backdoor", 0.2), "cpu", deadline=float("inf"))
    assert row is not None
    assert 0 <= row["backdoor"] <= 1
    honest = run_case(case("fedavg", "none", 0.0), "cpu", deadline=float("inf"))
    assert honest is not None
    assert honest["backdoor"] == ""


def test_shares_by_hand() -> None:
    # Attackers 1 and 2: of 1.0 + 1.0 weight they get 0.25 + 0; of their three updates one was refused, one got no
    # weight; of the honest clients' four updates one got none.
    records = [
        RoundRecord(1, 0.5, [1, 5, 6], [0.25, 0.75, 0.0], 1.6, 0, 0, refused={"2": "not finite"}),
        RoundRecord(2, 0.5, [2, 7, 8], [0.0, 0.5, 0.5], 2.0, 0, 0),
    ]
    found = shares(records, {1, 2})
    assert found["attackers_weight"] == pytest.approx(0.125)
    assert found["attackers_left_out"] == pytest.approx(2 / 3)
    assert found["honest_left_out"] == pytest.approx(1 / 4)
    assert shares(records, set())["attackers_weight"] == ""


def test_rows_are_kept_skipped_and_tabled(tmp_path: Path) -> None:
    file, page = tmp_path / "some" / "rows.csv", tmp_path / "page.md"
    clean, attacked = case("fedavg", "none", 0.0), case("fedavg", "sign-flip", 0.2)
    assert run_case(clean, "cpu", deadline=0) is None
    for one in (clean, attacked):
        row = run_case(one, "cpu", deadline=float("inf"))
        assert row is not None
        append(row, file)
    append({**row, "attackers": 0.3, "fedsat": "0.0.1"}, file)  # another version's runs are repeated, and shown apart
    assert done(file) == {clean.key, attacked.key}
    before, after = (float(row["accuracy"]) for row in read(file)[:2])
    table = "\n".join(tables(read(file)))
    assert "| | clean | sign-flip |" in table
    assert f"## mlp on mnist-mini, fedsat {fedsat.__version__}\n" in table
    assert table.index("30 % attackers") > table.index("## mlp on mnist-mini, fedsat 0.0.1\n")
    assert f"| fedavg | {100 * before:.1f} | {100 * (before - after):.1f} ({100 * after:.1f}) |" in table
    assert "trigger" not in table
    page.write_text(f"by hand\n{MARK}\nold tables", encoding="utf-8")
    write_page(read(file), page)
    assert page.read_text(encoding="utf-8").startswith(f"by hand\n{MARK}\n")
    assert "old tables" not in page.read_text(encoding="utf-8")


def made(defence: str, attack: str, attackers: float, **by_seed: float) -> list[Row]:
    return [
        {"defence": defence, "attack": attack, "attackers": str(attackers), "seed": seed[1:], "accuracy": str(accuracy)}
        for seed, accuracy in by_seed.items()
    ]


def test_worst_cases_by_hand() -> None:
    rows = [
        *made("fedavg", "none", 0.0, s0=0.9, s1=0.8),
        *made("fedavg", "scale", 0.2, s0=0.5, s1=0.6),
        *made("fedavg", "alie", 0.2, s0=0.8, s1=0.8),
        *made("fedsat", "none", 0.0, s0=0.95),
        *made("fedsat", "scale", 0.2, s0=0.8),
        *made("fedsat", "alie", 0.2, s0=0.85),
        *made("fedsat", "absent", 0.2, s0=0.1),  # not an attack
    ]
    table = list(glance({"LS": rows}))[1:]
    assert table[0].startswith("| | | clean | 20 %: loses at most | 20 %: above FedAvg by at least |")
    assert table[1] == "| LS | fedavg | 85.0 | 30.0 (scale; 2 of 10 attacks) | – |"  # ((0.9 − 0.5) + (0.8 − 0.6)) / 2
    # Seed 0 alone: 0.85 − 0.8 < 0.8 − 0.5.
    assert table[2] == "| LS | fedsat | 95.0 | 15.0 (scale; 2 of 10 attacks) | 5.0 (alie; 2 of 10 attacks) |"
    assert seeds_of(rows) == "Seeds 0, 1: `fedavg`. Seeds 0: `fedsat`."
