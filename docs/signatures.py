"""Griffe extension: shows options without their description in signatures.

`gamma: Annotated[float, Option("γ, strength of the correction", at_least=0)] = 0.9` becomes `gamma: float = 0.9` in the
reference. The page on configuration has the descriptions.
"""

from __future__ import annotations

from typing import Any

from griffe import Attribute, Expr, ExprName, ExprSubscript, ExprTuple, Extension, Function


class PlainSignatures(Extension):
    """Replaces `Annotated[T, …]` by `T`."""

    def on_attribute(self, *, attr: Attribute, **kwargs: Any) -> None:
        """Change the annotation of a field, before a dataclass's constructor is made from it."""
        del kwargs
        attr.annotation = plain(attr.annotation)

    def on_function(self, *, func: Function, **kwargs: Any) -> None:
        """Change the annotations of parameters."""
        del kwargs
        for parameter in func.parameters:
            parameter.annotation = plain(parameter.annotation)


def plain(annotation: str | Expr | None) -> str | Expr | None:
    """Return the annotation without `Annotated`."""
    match annotation:
        case ExprSubscript(left=ExprName(name="Annotated"), slice=ExprTuple(elements=[kind, *_])):
            return kind
    return annotation
