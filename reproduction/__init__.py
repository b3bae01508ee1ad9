"""The paper's tables and figures as experiments, with the numbers it prints."""

from reproduction.studies import SCALES, STUDIES, Cell, Study, find

__all__ = ["SCALES", "STUDIES", "Cell", "Study", "find"]
