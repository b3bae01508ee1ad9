"""A short document with headings, paragraphs, lists, tables and code, as Markdown and as a page of HTML."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

STYLE = """
:root { color-scheme: light dark; --line: light-dark(#dfe4e9, #313b46); --panel: light-dark(#f3f5f8, #1a2027); }
body { max-width: 860px; margin: 0 auto; padding: 12px 16px 40px; font: 15px/1.5 system-ui, sans-serif;
  background: light-dark(#ffffff, #12161b); color: light-dark(#1d2733, #e4e9ee); overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.25; } h2 { font-size: 1.15rem; margin: 30px 0 8px; }
.scroll { overflow-x: auto; margin: 12px 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; white-space: nowrap; }
th, td { padding: 4px 16px 4px 0; text-align: right; border-bottom: 1px solid var(--line); }
th { font-weight: 600; white-space: normal; vertical-align: bottom; }
th:first-child, td:first-child, .text :is(th, td) { text-align: left; }
.text td:last-child { white-space: normal; }
pre { background: var(--panel); border-radius: 7px; padding: 10px 12px; overflow-x: auto; }
code { font-size: 0.92em; } li { margin: 3px 0; }
@media print { body { font-size: 10pt; max-width: none; } h2 { break-after: avoid; } tr { break-inside: avoid; } }
"""


@dataclass(frozen=True)
class Heading:
    """A heading below the title."""

    text: str


@dataclass(frozen=True)
class Items:
    """A list."""

    texts: Sequence[str]


@dataclass(frozen=True)
class Grid:
    """A table; the first column is text, the others are numbers unless they are `texts`."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    texts: bool = False


@dataclass(frozen=True)
class Code:
    """Lines of code."""

    text: str
    language: str = ""


Block = str | Heading | Items | Grid | Code
"""A part of a document; a text is a paragraph. In paragraphs and lists, `…` marks code; names there are `literal`."""

TICK = "\ufdd0"
"""Stands for a backtick that is part of a name; Unicode gives this character no other meaning."""
MARKED = re.compile(r"`([^`]*)`")


def literal(name: object) -> str:
    """Return a name for use in a paragraph or a list: its backticks do not mark code."""
    return str(name).replace("`", TICK).replace("\n", " ")


@dataclass(frozen=True)
class Document:
    """A title, and what follows."""

    title: str
    blocks: Sequence[Block]

    def markdown(self) -> str:
        """Return the document as Markdown."""
        return "\n\n".join([f"# {_name(self.title)}", *map(_markdown, self.blocks)]) + "\n"

    def html(self) -> str:
        """Return the document as a page that loads nothing from elsewhere."""
        body = "\n".join(map(_html, self.blocks))
        return (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{escape(self.title)}</title>\n<style>{STYLE}</style>\n</head>\n"
            f"<body>\n<main>\n<h1>{escape(self.title)}</h1>\n{body}\n</main>\n</body>\n</html>\n"
        )


def _markdown(block: Block) -> str:
    match block:
        case str():
            return _plain(block)
        case Heading(text):
            return f"## {_name(text)}"
        case Items(texts):
            return "\n".join(f"- {_plain(text)}" for text in texts)
        case Code(text, language):
            return f"```{language}\n{text}\n```"
        case Grid(head, rows, texts):
            line = ["---", *["---" if texts else "---:"] * (len(head) - 1)]
            return "\n".join(f"| {' | '.join(map(_cell, row))} |" for row in (head, line, *rows))


def _html(block: Block) -> str:
    match block:
        case str():
            return f"<p>{_inline(block)}</p>"
        case Heading(text):
            return f"<h2>{escape(text)}</h2>"
        case Items(texts):
            return f"<ul>{''.join(f'<li>{_inline(text)}</li>' for text in texts)}</ul>"
        case Code(text, _):
            return f"<pre><code>{escape(text)}</code></pre>"
        case Grid(head, rows, texts):
            top = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
            body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
            kind = ' class="text"' if texts else ""
            return (
                f'<div class="scroll" tabindex="0"><table{kind}><thead><tr>{top}</tr></thead>'
                f"<tbody>{body}</tbody></table></div>"
            )


def _inline(text: str) -> str:
    return MARKED.sub(r"<code>\1</code>", escape(text)).replace(TICK, "`")


def _plain(text: str) -> str:
    """Return text in which Markdown finds no marks but those of code; `<` could begin HTML."""
    return "".join(_code(part) if place % 2 else _escaped(part) for place, part in enumerate(MARKED.split(text)))


def _escaped(text: str) -> str:
    return re.sub(r"([\\*_<\[\]#])", r"\\\1", text).replace(TICK, "\\`")


def _code(text: str) -> str:
    if TICK not in text:
        return f"`{text}`"
    fence = "`" * (1 + max(map(len, re.findall(f"{TICK}+", text))))
    return f"{fence} {text.replace(TICK, '`')} {fence}"


def _name(text: str) -> str:
    return _plain(literal(text))


def _cell(text: str) -> str:
    return text if set(text) <= set("-:") else _name(text).replace("|", "\\|")
