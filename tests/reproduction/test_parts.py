"""What a part of FedSat is worth: pairs of runs, and the tables in the page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import fedsat
from reproduction.parts import FIRST, Contrast, blocks, contrast_table, write_blocks
from reproduction.results import Result
from tests.support.calling import reproduction

SETTING = "mnist, mlp, lsmc, classes_per_client=2"
OLD = ", ".join([*FIRST, "partition.sizes=skewed"])


def result(
    contender: str, seed: int, accuracy: float, extra: str = "", loss: tuple[float, float] | None = None
) -> Result:
    objective = {"name": "psl", "tau": loss[0], "epsilon2": loss[1]} if loss else {"name": "cross-entropy"}
    line = {"contender": contender, "setting": SETTING, "extra": extra, "seed": str(seed)}
    line |= {"algorithm": json.dumps({"objective": objective})}
    return Result(line | {"accuracy_last_ten": str(accuracy), "worst_class_last_ten": str(accuracy - 20)})


def test_a_part_is_worth_the_mean_difference_over_common_seeds() -> None:
    runs = [result("fedsat", seed, accuracy, loss=(1.0, 4.0)) for seed, accuracy in enumerate([91.0, 92.0, 93.0, 99.0])]
    runs += [result("fedsat-psl", seed, 90.0) for seed in range(3)]
    contrast = Contrast("loss", "choice", "fedsat", "fedsat-psl")
    (line,) = contrast_table({("choice", "short"): runs}, [contrast])[2:]
    # Differences 1, 2, 3: 2 ± 4.303/√3. The interval contains zero.
    worth = "+2.00 ± 2.48"
    assert line == f"| loss | `fedsat` − `fedsat-psl` | mnist, mlp, lsmc, n=2 | 1, 4 | 3 | {worth} | {worth} |"
    clear = [*runs[:3], *(result("fedsat-psl", seed, 80.0 + seed) for seed in range(3))]
    assert contrast_table({("choice", "short"): clear}, [contrast])[2].endswith("| **+11.00 ± 0.00** |")


def test_versions_of_the_loss_are_not_mixed() -> None:
    runs = [
        result("fedsat", 0, 95.0, "partition.sizes=skewed", (1.0, 4.0)),
        result("fedsat", 0, 93.0, OLD, (0.0, 2.0)),
        result("fedsat", 0, 50.0, f"{OLD}, algorithm.server_lr=3", (0.0, 2.0)),
        result("fedsat-pwa", 0, 92.0, OLD, (0.0, 2.0)),
        result("fedsat-psl", 0, 90.0, "partition.sizes=skewed"),
        result("fedavg", 0, 80.0, "partition.sizes=skewed"),
        result("fedavg", 0, 85.0),
    ]
    kept = {("defaults", "short"): runs}

    def worth(having: str, lacking: str) -> list[str]:
        lines = contrast_table(kept, [Contrast("", "defaults", having, lacking)])[2:]
        return [" ".join(line.split(" | ")[3:6]) for line in lines]

    assert worth("fedsat", "fedsat-pwa") == ["0, 2 1 +1.00"]
    assert worth("fedsat", "fedsat-psl") == ["1, 4 1 +5.00", "0, 2 1 +3.00"]
    assert worth("fedsat-psl", "fedavg") == ["– 1 +10.00"]  # once, although it belongs to both versions


def test_options_are_found_in_the_results() -> None:
    base = "fedsat epsilon2=2.0"
    names = ["fedsat", base, "fedsat inertia=0.5 epsilon2=2.0", f"{base}, averaged", "fedsat tau=0.0 epsilon2=2.0"]
    names.append("fedsat lengthen=3.0")
    runs = [result(name, 100, 90.0 + place, loss=(1.0, 2.0)) for place, name in enumerate(names)]
    tables = blocks({("choice", "short"): runs})
    assert [line.split(" | ")[0] for line in tables["options"][2:]] == ["| `inertia=0.5`"]
    assert "| -1.00 |" in tables["parts"][3]  # ε₂ = 4 against 2
    assert "| +5.00 |" in tables["lengthened"][2]


def test_tables_go_between_their_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- parts -->\nold\n<!-- /parts -->\nafter\n")
    write_blocks({"parts": ["| new |"]}, page)
    assert page.read_text() == "before\n<!-- parts -->\n\n| new |\n\n<!-- /parts -->\nafter\n"
    with pytest.raises(fedsat.UsageError, match="has no <!-- options --> and <!-- /options -->"):
        write_blocks({"options": ["| new |"]}, page)


def test_the_study_names_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = reproduction(capsys, "study")
    assert code == 2
    assert "run: python -m reproduction run choice --scale short --seed 100" in err
