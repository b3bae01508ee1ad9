"""The report page: a single HTML file with data, styles and script, which loads nothing from elsewhere."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from fedsat.experiment.folder import CONFIG, speaking_of, write_whole
from fedsat.report.chart_data import chart_data
from fedsat.report.comparison import ComparisonTable, comparison
from fedsat.report.groups import Group, common_settings
from fedsat.report.terms import EFFECTIVE_CLIENTS

SCRIPTS = ("page.js", "page_detail.js", "page_controls.js")
"""The scripts: charts, details of what is chosen, and controls."""
MAX_NAMES = 4
"""Maximum number of methods, and of datasets, in the title."""


def write_page(groups: Sequence[Group], path: Path, target: float | None = None) -> Path:
    """Write the page about `groups` to `path`, and return the path."""
    content = make_page(groups, target)
    with speaking_of(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content.encode())
    return path


def make_page(groups: Sequence[Group], target: float | None = None) -> str:
    """The HTML of the page."""
    charts, shown = chart_data(groups), comparison(groups, target)
    parts = files("fedsat.report")
    return Template((parts / "page.html").read_text(encoding="utf-8")).substitute(
        title=escape(_title(groups)),
        setting=escape(common_settings(groups)),
        style=(parts / "page.css").read_text(encoding="utf-8"),
        table=html_table(shown),
        legend=escape(shown.legend),
        terms="<br>".join(map(escape, shown.terms)),
        effective=escape(EFFECTIVE_CLIENTS),
        configurations="\n".join(map(_configuration, groups)),
        notes="".join(f"<p>{escape(note)}</p>" for note in charts["notes"]),
        # The name of a run or class must not be able to close the script element.
        data=json.dumps(charts, separators=(",", ":")).replace("<", "\\u003c"),
        script="\n".join((parts / name).read_text(encoding="utf-8") for name in SCRIPTS),
    )


def _title(groups: Sequence[Group]) -> str:
    """Methods and datasets, or their number if they are many."""
    methods = list(dict.fromkeys(group.first.method for group in groups))
    datasets = list(dict.fromkeys(Path(str(group.first.table["dataset"])).name for group in groups))
    named = ", ".join(methods) if len(methods) <= MAX_NAMES else f"{len(methods)} methods"
    return f"{named} on {', '.join(datasets) if len(datasets) <= MAX_NAMES else f'{len(datasets)} datasets'}"


def html_table(shown: ComparisonTable, caption: str = "") -> str:
    """The table of a comparison, with the best value of each column in bold."""
    rows = [[(text.replace("±", " ± ") + " ≈" * (mark == "tie"), mark) for text, mark in row] for row in shown.rows]
    cells = ["".join(_cell(text, mark) for text, mark in row) for row in rows]
    head = "".join(f"<th>{escape(heading)}</th>" for heading in shown.headings)
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    return f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(text: str, mark: str) -> str:
    content = f"<b>{escape(text)}</b>" if mark == "best" else escape(text)
    return f'<td class="{mark}">{content}</td>'


def _configuration(group: Group) -> str:
    """What is needed to repeat the runs of a group: configuration, seeds, command and versions."""
    run = group.first
    made = run.stored.get("made_with", {})
    facts = [f"seeds {', '.join(map(str, group.seeds))}", f"files {', '.join(str(run.folder) for run in group.runs)}"]
    facts += [f"command {made['command']}"] if made.get("command") else []
    facts += [f"{key} {made[key]}" for key in ("fedsat", "torch", "python", "device", "finished") if key in made]
    text = (run.folder / CONFIG).read_text(encoding="utf-8")
    listed = "".join(f"<br>{escape(fact)}" for fact in facts)
    summary = f"<summary>{escape(group.label)}</summary>"
    return f'<details>{summary}<p class="note">{listed[4:]}</p><pre>{escape(text)}</pre></details>'
