"""The documentation: its links lead somewhere, its pages are all in the navigation, and its code works."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import re
import shlex
import sys
import types
import unicodedata
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
import typer.main

import fedsat
from examples.extend import method, metric, objective
from fedsat.cli.main import app
from reproduction.commands import app as reproduction_app

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
NAVIGATION = re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("\nnav:\n")[1])
FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```", flags=re.DOTALL | re.MULTILINE)


def load_hooks() -> Any:
    spec = importlib.util.spec_from_file_location("docs_hooks", DOCS / "hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read_pages() -> dict[str, str]:
    """Every page by its path from the root of the repository, the generated ones included."""
    files = [*ROOT.glob("*.md"), *DOCS.rglob("*.md")]
    pages = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in files}
    return pages | {f"docs/{path}": content for path, content in GENERATED.items() if isinstance(content, str)}


GENERATED: dict[str, str | bytes] = load_hooks().generated_files()
PAGES = read_pages()


def blocks(language: str) -> list[tuple[str, str]]:
    """The code blocks of a language, each with its page."""
    return [(page, found[2]) for page, text in PAGES.items() for found in FENCE.findall(text) if found[1] == language]


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as Python-Markdown writes them."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", FENCE.sub("", text), flags=re.MULTILINE):
        words = unicodedata.normalize("NFKD", re.sub(r"\]\([^)]*\)", "", heading)).encode("ascii", "ignore").decode()
        found.add(re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", words).strip().lower()))
    return found


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    prose = re.sub(r"`[^`\n]*`", "", FENCE.sub("", PAGES[page]))
    dead = []
    for link in re.findall(r"\]\(<?([^)\s>]+)>?\)", prose):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent.joinpath(path).resolve() if path else ROOT / page
        name = str(target.relative_to(ROOT))
        exists = target.exists() or name.removeprefix("docs/") in GENERATED
        if not exists or (anchor and anchor not in anchors(PAGES[name])):
            dead.append(link)
    assert not dead


@pytest.mark.parametrize("page", PAGES)
def test_references_to_the_api_lead_somewhere(page: str) -> None:
    text = FENCE.sub("", PAGES[page])
    names = re.findall(r"\]\[(fedsat[\w.]*)\]", text) + re.findall(r"^::: (\S+)", text, flags=re.MULTILINE)
    assert [name for name in names if not resolves(name)] == []


def resolves(name: str) -> bool:
    """Whether a dotted name is a module, or something in one."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:end]))
        except ImportError:
            continue
        for part in parts[end:]:
            found = getattr(found, part, None)
        return found is not None
    return False


def test_every_page_of_the_navigation_exists() -> None:
    assert [page for page in NAVIGATION if f"docs/{page}" not in PAGES] == []
    assert len(NAVIGATION) == len(set(NAVIGATION))


def test_every_file_is_used() -> None:
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    everything = settings + "".join(PAGES.values())
    for path in DOCS.rglob("*"):
        name = str(path.relative_to(DOCS))
        if not path.is_file() or "__pycache__" in name:
            continue
        assert name in NAVIGATION if path.suffix == ".md" else path.name in everything, f"{name} is on no page"


@pytest.mark.parametrize("page", PAGES)
def test_commands_can_be_parsed(page: str) -> None:
    for home, text in blocks("") + blocks("bash"):
        for line in text.replace("\\\n", " ").splitlines():
            if home == page and re.match(r"(fedsat|python -m reproduction) ", line):
                parse(shlex.split(line, comments=True))


def parse(words: list[str]) -> None:
    """Parse a command line without running it; click raises an error that names what is wrong."""
    program, rest = (app, words[1:]) if words[0] == "fedsat" else (reproduction_app, words[3:])
    command: Any = typer.main.get_command(program)
    while hasattr(command, "commands"):
        command, rest = command.commands[rest[0]], rest[1:]
    command.make_context(" ".join(words), rest)


@pytest.mark.parametrize("page", PAGES)
def test_python_can_be_parsed_and_names_exist(page: str) -> None:
    code = "\n".join(code for home, code in blocks("python") if home == page)
    ast.parse(code)
    names = set(re.findall(r"\bfedsat(?:\.[a-zA-Z_]\w*)+", code))
    assert {name for name in names if not resolves(name)} == set()


SMALL: dict[str, Any] = {"clients": 10, "per_round": 3, "rounds": 2, "epochs": 1, "precision": "float64"}


@pytest.fixture
def mymodule(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """The Python code of a page, as the module `mymodule`."""
    module = types.ModuleType("mymodule")
    monkeypatch.setitem(sys.modules, "mymodule", module)
    for page, code in blocks("python"):
        if page == request.param and "from mymodule" not in code:
            exec(code, module.__dict__)
    return module


EXAMPLES: dict[str, dict[str, Any]] = {
    "LocalMomentum": {"algorithm": method.LocalMomentum()},
    "Focal": {"objective": objective.Focal()},
}
"""Parts that a page shows without types and `examples/extend` has as complete files."""


@pytest.mark.parametrize("mymodule", ["docs/howto/method.md"], indirect=True)
@pytest.mark.parametrize("part", ["Clipped", "LocalMomentum", "Focal"])
def test_methods_of_your_own(mymodule: types.ModuleType, part: str) -> None:
    given = {"algorithm": "fedavg", "with_parts": [f"mymodule:{part}"]} if part == "Focal" else {}
    given = given or {"algorithm": getattr(mymodule, part)()}
    losses = [
        fedsat.run(**SMALL, **given, engine=engine).records[-1].metrics["loss"] for engine in ("sequential", "stacked")
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)
    assert losses[0] != fedsat.run(**SMALL, algorithm="fedavg").records[-1].metrics["loss"]
    if part in EXAMPLES:
        example = fedsat.run(**SMALL, **{"algorithm": "fedavg", **EXAMPLES[part]})
        assert example.records[-1].metrics["loss"] == pytest.approx(losses[0], rel=1e-9)


@pytest.mark.parametrize("mymodule", ["docs/howto/model.md"], indirect=True)
def test_a_model_of_your_own(mymodule: types.ModuleType) -> None:
    run = fedsat.run(**SMALL, algorithm="fedavg", model=mymodule.Net, width=4)
    assert run.notes == []  # it is folded, as the page says


@pytest.mark.parametrize("mymodule", ["docs/howto/metric.md"], indirect=True)
def test_metrics_of_your_own(mymodule: types.ModuleType) -> None:
    fedsat.run(**SMALL, algorithm="fedavg", metrics=["mymodule:auprc", "mymodule:geometric_mean"])
    evaluation = fedsat.Evaluation(np.array([[8, 2], [5, 5]]), 0.5)
    assert metric.geometric_mean(evaluation) == mymodule.geometric_mean(evaluation)


def test_numbers_of_lines() -> None:
    rows = re.findall(r"\| `([\w/]+\.\w+)` \| (\d+) \|", PAGES["docs/concepts/metric.md"])
    assert len(rows) == 14
    for path, lines in rows:
        real = len((ROOT / "src" / "fedsat" / path).read_text(encoding="utf-8").splitlines())
        assert int(lines) == pytest.approx(real, rel=0.1), path


@pytest.mark.parametrize("name", ["tutorial", "hospitals", "skewed-images"])
def test_notebooks_run(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    mpl.use("agg")
    notebook = json.loads((DOCS / f"{name}.ipynb").read_text(encoding="utf-8"))
    module = types.ModuleType("notebook_code")
    monkeypatch.setitem(sys.modules, "notebook_code", module)
    if name == "hospitals":
        pytest.importorskip("pyarrow")
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            code = "".join(cell["source"]).replace('"rounds": 30', '"rounds": 2, "per_round": 4, "epochs": 1')
            code = re.sub('"rounds": (5|15)', '"rounds": 1', code).replace("rounds=10", "rounds=2")
            exec(code, module.__dict__)
    importlib.import_module("matplotlib.pyplot").close("all")
