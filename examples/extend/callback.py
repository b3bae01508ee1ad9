"""A callback: stop when the worst class has not improved for ten evaluations.

fedsat run --rounds 200 --callback callback:Patience
"""

import fedsat


class Patience(fedsat.Callback):
    """Stop early. It looks at the run's records and keeps nothing, so that it also works in a resumed run."""

    def __init__(self, evaluations: int = 10) -> None:
        self.evaluations = evaluations

    def round(self, run: fedsat.Run, record: fedsat.RoundRecord) -> None:
        """Compare the best of the last evaluations with the best of those before them."""
        seen = [each.metrics["worst_class_recall"] for each in run.records if each.evaluated]
        before, last = seen[: -self.evaluations], seen[-self.evaluations :]
        if before and max(last) <= max(before):
            run.stop(f"the worst class has not improved for {self.evaluations} evaluations")
