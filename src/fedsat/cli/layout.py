"""Commands that are imported when they are used, and help texts in sections.

The help is plain text without boxes: it is short, and can be copied and piped.
"""

from __future__ import annotations

import importlib
import os
import signal
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

import typer.core
import typer.main

from fedsat.cli import completion

INTERRUPTED = 128 + signal.SIGINT
"""Exit code after Ctrl-C, as in shells."""

setattr(typer.core, "HAS_RICH", False)  # noqa: B010 (otherwise typer 0.20 escapes brackets in plain help texts)


@dataclass(frozen=True)
class Entry:
    """A command that is not imported yet: its place in the help, and where to find it."""

    section: str
    summary: str
    module: str = ""
    function: str = ""
    commands: Mapping[str, Entry] = field(default_factory=dict)
    """The commands of a group; a group has no module."""

    def load(self, path: str) -> Any:
        """Import the command with the given path, such as `data get`, or build a light one for shell completion."""
        name = path.rpartition(" ")[2]
        if self.commands:
            return Group(name=name, path=path, entries=self.commands, help=self.summary, rich_markup_mode=None)
        if completion.is_active():
            function = completion.stub(path)
        else:
            with exit_on_interrupt():
                function = getattr(importlib.import_module(f"fedsat.cli.{self.module}"), self.function)
        single = typer.Typer(add_completion=False, rich_markup_mode=None)
        single.command(name, cls=Command, short_help=self.summary)(function)
        return typer.main.get_command(single)


class Commands(Mapping[str, Any]):
    """The commands of a group by name, each imported on first use."""

    def __init__(self, path: str, entries: Mapping[str, Entry]) -> None:
        self._path, self._entries = path, entries
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            self._loaded[name] = self._entries[name].load(f"{self._path} {name}".strip())
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


class Command(typer.core.TyperCommand):
    """A command that shows its options in sections."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments and the options."""
        _write_parameters(self.get_params(ctx), ctx, formatter)


class Group(typer.core.TyperGroup):
    """A group that shows its commands in sections, and imports them on first use."""

    entries: Mapping[str, Entry] = {}

    def __init__(self, *, path: str = "", entries: Mapping[str, Entry] | None = None, **settings: Any) -> None:
        super().__init__(**settings)
        self.entries = self.entries if entries is None else entries
        self.commands: Any = Commands(path, self.entries)

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 (click's signature)
        """The names of the commands, in the order of the help."""
        return list(self.entries)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the commands, then the group's own options."""
        width = max(map(len, self.entries))
        rows = [(entry.section, (name.ljust(width), entry.summary)) for name, entry in self.entries.items()]
        _write_sections(rows, formatter)
        _write_parameters(self.get_params(ctx), ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """The names and summaries of commands that begin with `incomplete`, or the group's options."""
        items = super().shell_complete(ctx, incomplete)
        for item in items:
            item.help = self.entries[item.value].summary if item.value in self.entries else item.help
        return items


def _write_parameters(parameters: Iterable[Any], ctx: Any, formatter: Any) -> None:
    rows = []
    for parameter in parameters:
        record = parameter.get_help_record(ctx)
        if record is not None:
            usual = "Arguments" if parameter.param_type_name == "argument" else "Options"
            # Limits such as [x>=1] are part of the error message for a value outside them.
            text = f"{parameter.help or ''}{_default(parameter, ctx)}".strip()
            rows.append((getattr(parameter, "rich_help_panel", None) or usual, (record[0], text)))
    _write_sections(rows, formatter)


def _default(parameter: Any, ctx: Any) -> str:
    value = parameter.get_default(ctx)
    shown = parameter.show_default and value is not None and not getattr(parameter, "is_flag", False)
    return f" [default: {value}]" if shown else ""


def _write_sections(rows: Iterable[tuple[str, tuple[str, str]]], formatter: Any) -> None:
    sections: dict[str, list[tuple[str, str]]] = {}
    for section, row in rows:
        sections.setdefault(section, []).append(row)
    # One width for the left column of all sections, so that the texts are aligned.
    width = max((len(name) for own in sections.values() for name, _ in own), default=0)
    for section in sorted(sections, key=lambda name: {"Arguments": 0, "Options": 2}.get(name, 1)):
        with formatter.section(section):
            formatter.write_dl([(name.ljust(width), text) for name, text in sections[section]])


@contextmanager
def exit_on_interrupt() -> Iterator[None]:
    """Let Ctrl-C end the process at once.

    While torch is being imported there is nothing to save, and an exception raised during the import may be lost or
    turn into another error.
    """

    def leave(*_: object) -> NoReturn:
        os._exit(INTERRUPTED)

    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not (usual and threading.current_thread() is threading.main_thread()):
        yield
        return
    signal.signal(signal.SIGINT, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
