"""The page is safe with any name, small with many runs, and works in a real browser."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fedsat.report.groups import Group, find_runs, group_runs
from fedsat.report.page import make_page, write_page
from tests.support.made_runs import make_run

EVIL = "</script><img src=x onerror=alert(1)>"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
METHODS = "elastic fedavg fedavgm feddyn fedlada fedlc fedprox moon scaffold fedsat".split()


def two_methods(folder: Path) -> list[Group]:
    for seed in (0, 1):
        made: dict[str, Any] = {"seed": seed, "scores": True}
        make_run(folder / f"fedavg{seed}", algorithm="fedavg", accuracy=0.6 + seed / 50, **made)
        make_run(folder / f"fedsat{seed}", algorithm="fedsat", accuracy=0.8 + seed / 50, **made)
    return group_runs(find_runs([folder]))


def test_nothing_is_fetched_and_names_are_only_text(tmp_path: Path) -> None:
    names = [EVIL, "b & <i>", *"cdefghij"]
    make_run(tmp_path / "run", names=names, dataset=f"./{EVIL.replace('/', '')}")
    page = make_page(group_runs(find_runs([tmp_path])))
    assert EVIL not in page
    assert "<img" not in page
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//""", page)
    assert "default-src 'none'" in page
    data = json.loads(re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[0])
    assert data["groups"][0]["classes"] == names
    assert "The partition of" in page  # the page notes that the data are not available


def test_ten_methods_three_seeds_400_rounds_100_classes_fit(tmp_path: Path) -> None:
    for method in METHODS:
        for seed in range(3):
            size: dict[str, Any] = {"rounds": 400, "classes": 100, "clients": 100}
            make_run(tmp_path / f"{method}{seed}", algorithm=method, seed=seed, **size)
    page = write_page(group_runs(find_runs([tmp_path])), tmp_path / "report.html")
    assert page.stat().st_size < 3_000_000
    assert "Curves show 200 of up to 400 evaluated rounds." in page.read_text()


def test_many_groups_fit(tmp_path: Path) -> None:
    for number in range(180):
        make_run(tmp_path / str(number), algorithm="fedavg", lr=0.01 + number / 1e4, rounds=200, clients=100)
    page = make_page(group_runs(find_runs([tmp_path])))
    assert len(page.encode()) < 3_000_000
    assert "Curves show 55 of up to 200 evaluated rounds." in page


WATCH = "<script>window.errors = []; onerror = (m) => { errors.push(String(m)); }; console.error = onerror;</script>"
DRIVE = """<script>
const count = (selector) => document.querySelectorAll(selector).length;
const seen = { before: count("#accuracy path.curve"), bands: count("#accuracy path:not(.curve)") };
const curves = "accuracy worst_class_recall worst_client_accuracy effective_clients".split(" ");
const maps = "clients partition recall recall_other confusion confusion_other weights priority client_classes";
const ids = [...curves, ...maps.split(" "), ..."class_recall roc pr reliability".split(" ")];
const text = (selector) => document.querySelector(selector)?.textContent ?? "";
seen.charts = Object.fromEntries(ids.map((id) => [id, count(`#${id} svg`)]));
document.querySelector("#keys button").click();
seen.after = count("#accuracy path.curve");
seen.pressed = document.querySelector("#keys button").getAttribute("aria-pressed");
const chart = document.querySelector("#accuracy svg"), place = chart.getBoundingClientRect();
chart.dispatchEvent(new PointerEvent("pointermove", { clientX: place.left + 150, clientY: place.top + 50 }));
seen.tip = document.getElementById("tip").hidden ? "" : document.getElementById("tip").textContent;
seen.answers = count("#answers li");
seen.alternatives = count(".alt");
document.querySelector("#classes tbody tr:nth-child(3) button").click();
seen.class = [text("#roc-title"), document.getElementById("class").value, text("#classes tr.picked button")];
const heading = document.querySelector("#classes thead th:nth-child(3) button");
heading.click();
seen.sorted = [...document.querySelectorAll("#classes tbody td:nth-child(3)")].map((cell) => +cell.textContent);
seen.order = document.querySelector("#classes thead th:nth-child(3)").getAttribute("aria-sort");
document.querySelectorAll("#each_client tbody button")[4].click();
seen.client = [text("#client_classes-title"), `client ${text("#each_client tr.picked button")}`];
const values = [...document.querySelectorAll("#each_client tbody td:nth-child(4)")].map((cell) => +cell.textContent);
seen.worst = values[0] === Math.min(...values);
document.querySelector("#roc + .alt").open = true;
document.querySelector("#roc + .alt").ontoggle();
seen.alternative = text("#roc + .alt tr:first-child");
seen.named = [...document.querySelectorAll("button, select")].every((each) => each.textContent || each.ariaLabel);
document.getElementById("other").value = "";
document.getElementById("other").onchange();
seen.other = [...document.querySelectorAll(".other")].map((figure) => figure.hidden);
document.getElementById("method").value = 0;
document.getElementById("method").onchange();
seen.priority = document.getElementById("priority").textContent;
document.getElementById("theme").click();
seen.theme = document.documentElement.dataset.theme;
seen.wide = document.documentElement.scrollWidth - innerWidth;
seen.errors = errors;
const output = document.createElement("pre");
output.id = "seen";
output.textContent = JSON.stringify(seen);
document.body.append(output);
</script>"""


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
@pytest.mark.parametrize("width", [1280, 500])
def test_in_a_browser(tmp_path: Path, width: int) -> None:
    page = make_page(two_methods(tmp_path / "runs"))
    # The page's policy allows scripts inside it; these two observe and control it.
    driven = page.replace("<head>", f"<head>{WATCH}").replace("</body>", f"{DRIVE}</body>")
    path = tmp_path / "driven.html"
    path.write_text(driven, encoding="utf-8")
    options = (
        "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking "
        f"--disable-component-update --disable-sync --enable-logging=stderr --window-size={width},900 --dump-dom"
    ).split()
    done = subprocess.run(
        [str(CHROMIUM), *options, f"--user-data-dir={tmp_path / 'profile'}", path.as_uri()],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "CONSOLE" not in done.stderr
    seen = json.loads(html.unescape(re.findall(r'<pre id="seen">(.*?)</pre>', done.stdout, re.DOTALL)[0]))
    assert seen["errors"] == []
    assert set(seen["charts"].values()) == {1}
    assert (seen["before"], seen["bands"], seen["after"], seen["pressed"]) == (2, 2, 1, "false")
    assert seen["tip"].startswith("round ")
    assert "fedsat" in seen["tip"]
    assert seen["theme"] == "dark"
    assert seen["answers"] >= 4
    assert seen["alternatives"] == len(seen["charts"])
    assert seen["class"] == ["Class 2: ROC curve, recall in %", "2", "2"]
    assert seen["sorted"] == sorted(seen["sorted"], reverse=True)
    assert seen["order"] == "descending"
    assert seen["client"][0].startswith(seen["client"][1])
    assert seen["worst"]
    assert seen["alternative"] == "methodfalse alarmsrecall"
    assert seen["named"]
    assert seen["other"] == [True, True]
    assert seen["wide"] <= 0
