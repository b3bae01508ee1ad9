"""The model card: its numbers are those of the model to use, and its text is safe in Markdown and HTML."""

from __future__ import annotations

import dataclasses
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import fedsat
from fedsat.experiment.card import Card
from fedsat.experiment.document import Code, Document, Grid, Heading, Items, literal
from tests.support.patients import write_patients
from tests.support.runs import TINY


def section(card: str, name: str) -> str:
    return card.partition(f"## {name}\n")[2].partition("\n## ")[0]


def rows(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if "---" not in line]


@pytest.fixture(scope="module")
def patients(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("pyarrow")
    folder = tmp_path_factory.mktemp("patients")
    table: dict[str, Any] = {"dataset": write_patients(folder / "patients.csv"), "label": "outcome"}
    fedsat.run(rounds=3, epochs=2, lr=0.05, **table, client="hospital", validation=0.2, out=folder / "run")
    return folder / "run"


def test_the_numbers_are_those_of_the_model_to_use(patients: Path) -> None:
    card, stored = (patients / "card.md").read_text(), fedsat.load(patients)
    chosen = stored.summary["selected"]
    record = stored.records[chosen["round"] - 1].metrics
    assert f"`best.safetensors`: that of round {chosen['round']}, chosen by balanced accuracy on validation" in card
    overall = {row[0]: row[1] for row in rows(section(card, "Results"))}
    assert overall["balanced accuracy %"] == f"{100 * record['balanced_accuracy']:.1f}"
    assert overall["worst-client accuracy %"] == f"{100 * record['worst_client_accuracy']:.1f}"
    classes = rows(section(card, "Results of each class"))
    assert classes[0][:4] == ["class", "training samples", "test samples", "recall %"]
    assert [row[3] for row in classes[1:]] == [f"{100 * value:.1f}" for value in record["recall"]]
    gap = 100 * abs(record["recall"][0] - record["recall"][1])
    assert f"the recall differs by {gap:.1f} percentage points" in card
    clients = rows(section(card, "Results of each client"))
    assert [row[0] for row in clients[1:]] == ["east", "north", "west"]
    trained = sum(int(row[1]) for row in clients[1:])
    assert trained == sum(int(row[1]) for row in classes[1:])
    validation = int(re.findall(r"(\d+) validation samples", section(card, "Data"))[0])
    assert trained + validation + sum(int(row[2]) for row in classes[1:]) == 90


def test_limits(patients: Path) -> None:
    limits = section((patients / "card.md").read_text(), "Limits")
    assert "Few test samples, so the results are uncertain: False (" in limits
    assert "Few validation samples, so thresholds are uncertain: False (" in limits
    assert "no differential privacy" in limits
    assert "not chosen on validation samples" not in limits


def test_the_last_model(tmp_path: Path) -> None:
    run = fedsat.run(**{**TINY, "rounds": 2}, out=tmp_path)
    card = (tmp_path / "card.md").read_text()
    assert "`model.safetensors`: that of the last round; there were no validation samples" in card
    assert (
        dict(row[:2] for row in rows(section(card, "Results")))["accuracy %"] == f"{100 * run.summary['accuracy']:.1f}"
    )
    limits = section(card, "Limits")
    assert "This model was not chosen on validation samples" in limits
    assert "There are no thresholds" in limits
    assert "CC BY-SA 3.0" in section(card, "Data")


def test_an_interrupted_run_has_a_card_of_its_records(tmp_path: Path) -> None:
    def stop(run: fedsat.Run, record: fedsat.RoundRecord) -> None:
        if record.round == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fedsat.run(**{**TINY, "evaluate_every": 1}, callbacks=[stop], out=tmp_path)
    card, last = (tmp_path / "card.md").read_text(), fedsat.load(tmp_path).records[-1]
    assert "The run is interrupted; it has 2 rounds of 6." in card
    assert last.round == 2
    results = section(card, "Results")
    assert dict(row[:2] for row in rows(results))["accuracy %"] == f"{100 * last.metrics['accuracy']:.1f}"
    assert f"| 3 | {100 * last.metrics['recall'][3]:.1f} |" in results


def test_on_nodes_the_data_are_not_known(patients: Path) -> None:
    stored = fedsat.load(patients)
    inputs = stored.predictor().info.inputs
    metrics = stored.records[-1].metrics
    summary = {key: value for key, value in stored.summary.items() if key != "selected"}
    card = Card(summary, stored.table, inputs, "last", None, metrics, None, False, 10)
    text = card.document().markdown()
    assert "on 3 real nodes" in text
    assert "The training data are on the nodes." in text
    assert "training samples |" not in text
    nothing = dataclasses.replace(card, metrics={})
    assert "No round of this run was evaluated." in nothing.document().markdown()


class Texts(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_names_cannot_break_out() -> None:
    name = "<script>|*x_y*`</code>`"
    text = literal(name)
    document = Document(name, [text, Heading(name), Items([text]), Grid(("a", "b"), [(name, "1")]), Code("x < y")])
    page = Texts()
    page.feed(document.html())
    assert "script" not in page.tags
    assert page.text.count(name) == 6  # with the title of the page
    text = document.markdown()
    assert "\n| \\<script>\\|\\*x\\_y\\*\\`\\</code>\\` | 1 |\n" in text
    assert "<script>" not in text.replace("\\<script>", "")
    assert text.endswith("```\nx < y\n```\n")
    assert "| --- | ---: |" in text
    assert "http" not in document.html()  # it loads nothing


def test_backticks_mark_code_only_around_names() -> None:
    text = f"`{literal('a``b`')}` and {literal('c`')} or `d`."
    assert Document("", [text]).markdown() == "# \n\n``` a``b` ``` and c\\` or `d`.\n"
    assert "<p><code>a``b`</code> and c` or <code>d</code>.</p>" in Document("", [text]).html()
    # CommonMark reads this as two single backticks and an HTML tag between them, because runs of backticks must match.
    assert "\\`\\<b>\\`\\`" in Document("", [literal("`<b>``")]).markdown()
