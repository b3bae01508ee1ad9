"""Tables as files, and colours and legends of figures."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from fedsat.errors import UsageError
from fedsat.report.chart_data import chart_data
from fedsat.report.figures import FORMATS, curve_figure, write_figures
from fedsat.report.palette import METHODS, method_colour, styles
from fedsat.report.side_by_side import Comparison
from tests.support.made_runs import make_run


@pytest.fixture
def compared(tmp_path: Path) -> Comparison:
    for seed, accuracy in ((0, 0.6), (1, 0.8)):
        make_run(tmp_path / f"runs/a{seed}", algorithm="fedavg", seed=seed, accuracy=accuracy)
        make_run(tmp_path / f"runs/b{seed}", algorithm="fedsat", seed=seed, accuracy=accuracy + 0.1, gamma=0.5)
    return Comparison.of([tmp_path / "runs"], target=0.65)


def test_csv(compared: Comparison, tmp_path: Path) -> None:
    path = compared.write_table(tmp_path / "tables" / "one.csv")
    fedavg, fedsat = csv.DictReader(io.StringIO(path.read_text()))
    assert (fedavg["label"], fedavg["method"], fedavg["seeds"]) == ("fedavg", "fedavg", "2")
    # Mean and standard deviation (n − 1) of 0.6 and 0.8; the last ten of twelve rounds include one before the top.
    last_ten = [(accuracy * 0.75 + accuracy * 9) / 10 for accuracy in (0.6, 0.8)]
    assert float(fedavg["accuracy_mean"]) == pytest.approx(sum(last_ten) / 2, rel=1e-5)
    assert float(fedavg["accuracy_std"]) == pytest.approx((last_ten[1] - last_ten[0]) / 2**0.5, rel=1e-5)
    assert float(fedavg["best_accuracy_mean"]) == pytest.approx(0.7)
    assert (fedavg["target"], fedavg["seeds_that_reach_target"], fedavg["rounds_to_target_mean"]) == ("0.65", "1", "")
    # A mean of three rounds reaches 0.65 in round 6 with seed 0 (at most 0.7), and in round 4 with seed 1 (0.9).
    assert (fedsat["seeds_that_reach_target"], fedsat["rounds_to_target_mean"]) == ("2", "5")


def test_latex(compared: Comparison, tmp_path: Path) -> None:
    lines = compared.write_table(tmp_path / "one.tex").read_text().splitlines()
    assert lines[0].startswith("% mnist-mini, lsmc")
    assert lines[2] == r"\begin{tabular}{lrrrrrrrr}"
    assert lines[4].startswith(r" & accuracy \% & worst-class recall \% &")
    assert lines[7].startswith(r"fedsat & \textbf{78.0 $\pm$ 13.8} &")
    assert lines[-2:] == [r"\bottomrule", r"\end{tabular}"]


def test_names_are_escaped(tmp_path: Path) -> None:
    make_run(tmp_path / "a_1", algorithm="fedsat", epsilon2=2.0)
    make_run(tmp_path / "b_1", algorithm="fedsat", classes_per_client=3)
    table = Comparison.of([tmp_path]).write_table(tmp_path / "t.tex").read_text()
    assert r"classes\_per\_client=3" in table


def test_another_format_is_refused(compared: Comparison, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"ends in \.csv or \.tex"):
        compared.write_table(tmp_path / "one.xlsx")


def test_a_method_has_one_colour_whatever_it_is_compared_with() -> None:
    assert len(set(METHODS.values())) == len(METHODS)
    assert method_colour("fedsat:paper") == method_colour("fedsat") == METHODS["fedsat"]
    assert method_colour("mine:Net") == method_colour("mine:Net") != method_colour("mine:Other")
    alone = styles([("fedavg", "fedavg")])[0]
    others = styles([("fedsat", "fedsat-pwa"), ("fedavg", "fedavg"), ("fedsat", "fedsat")])
    assert (alone, others[2].colour, others[2].dash) == (others[1], METHODS["fedsat"], ())
    assert len({*styles([("fedsat", f"fedsat {n}") for n in range(16)])}) == 16


def test_figures_in_every_format(compared: Comparison, tmp_path: Path) -> None:
    names = {path.name for path in write_figures(compared.groups, tmp_path / "figures")}
    assert {f"accuracy.{ending}" for ending in FORMATS} < names
    assert (tmp_path / "figures/accuracy.pdf").read_bytes().startswith(b"%PDF")
    assert all((tmp_path / "figures" / name).stat().st_size for name in names)


def test_a_legend_of_many_entries_stays_beside_the_plot(tmp_path: Path) -> None:
    for number in range(15):
        make_run(tmp_path / f"{number:02}", algorithm="fedsat", gamma=0.05 * (number + 1))
    charts = chart_data(Comparison.of([tmp_path]).groups)
    figure = curve_figure(charts["groups"], charts["metrics"][0])
    figure.draw_without_rendering()
    (legend,) = figure.legends
    assert len(legend.get_texts()) == 15
    box, plot = legend.get_window_extent(), figure.axes[0].get_window_extent()
    assert box.x0 >= plot.x1
    assert box.x1 <= figure.bbox.width
    assert box.y0 >= 0
