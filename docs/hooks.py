"""MkDocs hook: builds the pages that are generated from code, so that they always agree with it.

reference/configuration.md    from the options of `fedsat.experiment.config.Config` and of every registered part
reference/cli.md              from the typer app
reference/api.md              from `fedsat.__all__`
tutorial.md, …                from the notebooks, with their stored outputs
"""

from __future__ import annotations

import base64
import html
import json
import re
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

HERE = Path(__file__).parent
NOTEBOOKS = ("tutorial", "hospitals", "skewed-images")


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages to the site."""
    from mkdocs.structure.files import File  # noqa: PLC0415 (tests use the rest of this module without MkDocs)

    for path, content in generated_files().items():
        files.append(File.generated(config, path, content=content))
    return files


def generated_files() -> dict[str, str | bytes]:
    """Return the generated pages and pictures by path."""
    pages: dict[str, str | bytes] = {}
    for name in NOTEBOOKS:
        page, images = notebook_page(json.loads((HERE / f"{name}.ipynb").read_text(encoding="utf-8")), name)
        pages |= {f"{name}.md": page, **images}
    return {
        "reference/configuration.md": configuration_page(),
        "reference/cli.md": command_line_page(),
        "reference/api.md": api_page(),
        **pages,
    }


# Configuration


def configuration_page() -> str:
    """Return the page of every setting of a run with its type, default and meaning."""
    from fedsat.algorithms import (  # noqa: PLC0415
        Algorithm,
        aggregators,
        algorithms,
        objectives,
        optimizers,
        weightings,
    )
    from fedsat.data import partitions  # noqa: PLC0415
    from fedsat.experiment.config import Config  # noqa: PLC0415
    from fedsat.models import FROM_DATA, models  # noqa: PLC0415
    from fedsat.options import options_of  # noqa: PLC0415
    from fedsat.rounds import attacks, lr_schedules, privacies  # noqa: PLC0415

    lines = [
        "# Configuration",
        "",
        "These are all settings of a run. They have the same names in Python (`fedsat.run(batch_size=32)`), on the",
        "[command line](cli.md) (`--batch-size 32`) and in a `config.toml` (`batch_size = 32`). Options of a part have",
        "no flag of their own, with a few exceptions: use `--set gamma=0.5`, or `gamma=0.5` in Python.",
        "",
        "## Run",
        "",
        *option_table(options_of(Config)),
        "",
        "A part with options is a table in `config.toml`:",
        "",
        "```toml",
        "rounds = 30",
        "",
        "[partition]",
        'name = "lsmc"',
        "classes_per_client = 2",
        "",
        "[algorithm]",
        'name = "fedsat"',
        "gamma = 0.5",
        "```",
        "",
    ]
    kinds: list[tuple[str, str, Any, Mapping[str, Any]]] = [
        ("Methods", "`algorithm`", algorithms, options_of(Algorithm)),
        ("Objectives", "`objective`, an option of every method", objectives, {}),
        ("Weightings", "`weighting`, an option of every method", weightings, {}),
        ("Aggregators", "`aggregator`, an option of every method", aggregators, {}),
        ("Partitions", "`partition`", partitions, {}),
        ("Models", "`model`", models, {}),
        ("Optimizers", "`optimizer`", optimizers, {}),
        ("Learning-rate schedules", "`lr_schedule`", lr_schedules, {}),
        ("Attacks", "`attack`", attacks, {}),
        ("Privacy", "`privacy`", privacies, {}),
    ]
    for title, where, registry, shared in kinds:
        lines += [f"## {title}", "", f"Setting: {where}. A class of your own is `module:Name`.", ""]
        if shared:
            lines += ["### Options of every method", "", *option_table(shared), ""]
        for name in registry:
            entry = registry.entry(name)
            own = {
                key: field
                for key, field in registry.options(name).items()
                if key not in FROM_DATA and field != shared.get(key) and not (entry.preset and key not in entry.preset)
            }
            lines += [f"### `{name}`", "", plain(entry.summary), "", *(option_table(own) if own else []), ""]
    return "\n".join(lines)


def option_table(options: Mapping[str, Any]) -> list[str]:
    """Return a table of options."""
    rows = [
        f"| `{name}` | {values(field)} | {default(field)} | {plain(field.option.help)} |"
        for name, field in options.items()
    ]
    return ["| setting | values | default | meaning |", "|---|---|---|---|", *rows]


def values(field: Any) -> str:
    """Describe the values that an option accepts."""
    kind, option = field.type, field.option
    if option.among is not None:
        kinds_of = "forms of privacy" if option.among.kind == "privacy" else f"{option.among.kind}s"
        return f"a name ([{kinds_of}](#{anchor(option.among.kind)}))"
    kinds = [part for part in typing.get_args(kind) if part is not type(None)]
    if typing.get_origin(kind) is Literal:
        return ", ".join(f"`{value}`" for value in kinds)
    if typing.get_origin(kind) is tuple:
        return "a list of numbers"
    words = {int: "whole number", float: "number", bool: "`true`, `false`", str: "text", Path: "path"}
    word = words.get(kinds[0] if kinds else kind, "a name" if field.name == "model" else "any")
    others = "".join(f" or `{other}`" for part in kinds for other in typing.get_args(part))
    bounds = [
        f"{sign} {limit:g}"
        for sign, limit in (
            ("≥", option.at_least),
            (">", option.above),
            ("≤", option.at_most),
            ("<", option.below),
        )
        if limit is not None
    ]
    return " ".join([word, ", ".join(bounds)]).strip() + others


def anchor(kind: str) -> str:
    """The heading on the configuration page that lists parts of a kind."""
    return {"algorithm": "methods", "lr_schedule": "learning-rate-schedules", "privacy": "privacy"}.get(
        kind, f"{kind}s".replace(" ", "-")
    )


def default(field: Any) -> str:
    """Return an option's default, as written in a configuration file."""
    value = field.default
    if field.required:
        return "required"
    if value is None:
        return "–"
    if field.option.among is not None:
        value = field.option.among.name_of(value)
    if isinstance(value, bool):
        value = str(value).lower()
    return f"`{list(value) if isinstance(value, tuple) else value}`"


def plain(text: str) -> str:
    """Escape text for a table's cell, so that nothing in it is Markdown."""
    return re.sub(r"([|*_<>\[\]])", r"\\\1", text)


# Command line


def command_line_page() -> str:
    """Return the page of every command with its arguments and options, read from the app."""
    import typer.main  # noqa: PLC0415

    from fedsat.cli.main import app  # noqa: PLC0415

    root = typer.main.get_command(app)
    lines = [
        "# Command line",
        "",
        "`fedsat COMMAND --help` shows the same text. Errors end as one line on stderr, with exit code 2 for wrong use",
        "and 1 for a failure; `--debug` shows the traceback. Ctrl-C ends with exit code 130.",
        "",
    ]
    for path, command in commands("fedsat", root):
        lines += [f"## {path}", "", *described(path, command), ""]
    return "\n".join(lines)


def commands(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Return a command and all its subcommands, each with its full name."""
    yield path, command
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(f"{path} {name}", below)


def described(path: str, command: Any) -> Iterator[str]:
    """A command's text, usage and options."""
    yield plain(" ".join((command.help or "").split()))
    yield ""
    context = command.context_class(command, info_name=path)
    yield "```text"
    yield f"{path} {' '.join(command.collect_usage_pieces(context))}".strip()
    yield "```"
    yield ""
    rows = []
    for parameter in (each for each in command.params if not getattr(each, "hidden", False)):
        text = plain(getattr(parameter, "help", None) or "")
        if parameter.param_type_name == "argument":
            rows.append(f"| `{parameter.make_metavar(context)}` | {text} |")
            continue
        names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
        value = "" if parameter.is_flag else f" `{parameter.make_metavar(context)}`"
        given = parameter.default
        shown = "" if given is None or callable(given) or parameter.is_flag or parameter.multiple else str(given)
        shown = f" [{plain(shown)}]" if shown and getattr(parameter, "show_default", False) is not False else ""
        rows.append(f"| {names}{value} | {text}{shown} |")
    if rows:
        yield from ("| argument or option | meaning |", "|---|---|", *rows)
    below = getattr(command, "commands", {})
    if below:
        yield from ("", "| command | |", "|---|---|")
        for name, each in below.items():
            target = f"{path} {name}".replace(" ", "-")
            yield f"| [`{path} {name}`](#{target}) | {plain(each.get_short_help_str(100))} |"


# Python API


def api_page() -> str:
    """What `fedsat` exports: functions, classes and errors; the text comes from their docstrings."""
    import fedsat  # noqa: PLC0415

    sections: dict[str, list[str]] = {"Functions": [], "Classes": [], "Errors": []}
    for name in fedsat.__all__:
        part = getattr(fedsat, name)
        home = getattr(part, "__module__", "")
        if home.startswith(("fedsat.algorithms", "fedsat.data", "fedsat.metrics")):
            continue  # has its own page
        if isinstance(part, type):
            sections["Errors" if issubclass(part, Exception) else "Classes"].append(name)
        elif callable(part):
            sections["Functions"].append(name)
    lines = [
        "# fedsat",
        "",
        "What most programs need. [Configuration](configuration.md) lists the settings that these functions accept.",
    ]
    for title, names in sections.items():
        lines += ["", f"## {title}"]
        for name in names:
            lines += ["", f"::: fedsat.{name}", "    options:", "      heading_level: 3"]
    return "\n".join(lines) + "\n"


# Notebook


def notebook_page(notebook: Mapping[str, Any], name: str) -> tuple[str, dict[str, bytes]]:
    """A notebook as Markdown, and its pictures by path."""
    parts = ["---\nhide: [navigation]\n---"]
    images: dict[str, bytes] = {}
    for number, cell in enumerate(notebook["cells"]):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
        elif cell["cell_type"] == "code":
            parts.append(f"```python\n{source}\n```")
            for position, output in enumerate(cell.get("outputs", [])):
                parts += rendered(output, f"assets/{name}-{number}-{position}.png", images)
        if number == 0:
            parts.append(f"[Download this page as a notebook]({name}.ipynb){{ .md-button }}")
    return "\n\n".join(parts) + "\n", images


def rendered(output: Mapping[str, Any], path: str, images: dict[str, bytes]) -> Iterator[str]:
    """One output of a cell; pictures are added to `images`."""
    data = output.get("data", {})
    if output["output_type"] == "stream":
        yield block("".join(output["text"]))
    elif "image/png" in data:
        images[path] = base64.b64decode("".join(data["image/png"]))
        yield f"![Output of the cell above]({path}){{ .output-image }}"
    elif "text/html" in data:
        table = re.sub(r"<style.*?</style>", "", "".join(data["text/html"]), flags=re.DOTALL)
        joined = re.sub(r">\s*\n\s*<", "><", table).strip()
        yield f'<div class="output-table">{joined}</div>'
    elif "text/plain" in data:
        yield block("".join(data["text/plain"]))


def block(text: str) -> str:
    """Text as a program printed it."""
    return f'<pre class="output">{html.escape(text.rstrip())}</pre>'
