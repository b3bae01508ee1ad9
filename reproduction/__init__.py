"""The paper's tables and figures as experiments, with the printed numbers."""

from reproduction.studies import SCALES, STUDIES, Cell, Study, find

__all__ = ["SCALES", "STUDIES", "Cell", "Study", "find"]
