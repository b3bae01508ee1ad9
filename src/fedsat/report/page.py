"""One page that holds everything: numbers, styles and script inside, nothing fetched from anywhere."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from fedsat.experiment.folder import CONFIG, speaking_of, write_whole
from fedsat.report.chart_data import chart_data
from fedsat.report.comparison import Comparison, comparison
from fedsat.report.groups import Group, common_settings


def write_page(groups: Sequence[Group], path: Path, target: float | None = None) -> Path:
    """Write the page about `groups` to `path`, and return where it is."""
    content = make_page(groups, target)
    with speaking_of(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content.encode())
    return path


def make_page(groups: Sequence[Group], target: float | None = None) -> str:
    """The text of the page."""
    charts, shown = chart_data(groups), comparison(groups, target)
    parts = files("fedsat.report")
    datasets = ", ".join(dict.fromkeys(Path(str(group.first.table["dataset"])).name for group in groups))
    title = (
        f"{', '.join(group.label for group in groups) if len(groups) <= 4 else f'{len(groups)} methods'} on {datasets}"
    )
    return Template((parts / "page.html").read_text(encoding="utf-8")).substitute(
        title=escape(title),
        setting=escape(common_settings(groups)),
        style=(parts / "page.css").read_text(encoding="utf-8"),
        table=_table(shown),
        legend=escape(shown.legend),
        configurations="\n".join(map(_configuration, groups)),
        notes="".join(f"<p>{escape(note)}</p>" for note in charts["notes"]),
        # A name of a run or class must not be able to end the script that holds it.
        data=json.dumps(charts, separators=(",", ":")).replace("<", "\\u003c"),
        script=(parts / "page.js").read_text(encoding="utf-8"),
    )


def _table(shown: Comparison) -> str:
    """The comparison with the best of each column in bold."""
    rows = [[(text.replace("±", " ± ") + " ≈" * (mark == "tie"), mark) for text, mark in row] for row in shown.rows]
    cells = ["".join(f'<td class="{mark}">{escape(text)}</td>' for text, mark in row) for row in rows]
    head = "".join(f"<th>{escape(heading)}</th>" for heading in shown.headings)
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _configuration(group: Group) -> str:
    """What it takes to run a group again: its file, its seeds, its command, and what it was made with."""
    run = group.first
    made = run.stored.get("made_with", {})
    facts = [f"seeds {', '.join(map(str, group.seeds))}", f"files {', '.join(str(run.folder) for run in group.runs)}"]
    facts += [f"command {made['command']}"] if made.get("command") else []
    facts += [f"{key} {made[key]}" for key in ("fedsat", "torch", "python", "device", "finished") if key in made]
    text = (run.folder / CONFIG).read_text(encoding="utf-8")
    listed = "".join(f"<br>{escape(fact)}" for fact in facts)
    summary = f"<summary>{escape(group.label)}</summary>"
    return f'<details>{summary}<p class="note">{listed[4:]}</p><pre>{escape(text)}</pre></details>'
