"""A metric: the geometric mean of the classes' recalls, low as soon as one class is recognised badly.

fedsat run --metrics metric:geometric_mean
"""

import numpy as np

import fedsat


@fedsat.metric(label="G-mean", unit="%", higher_is_better=True)
def geometric_mean(evaluation: fedsat.Evaluation) -> float:
    """Return the geometric mean of the recalls."""
    return float(np.prod(evaluation.recall) ** (1 / len(evaluation.recall)))
