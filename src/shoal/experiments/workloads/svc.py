"""Define SVC: a support vector classifier, fitted on a sample, predicts chunks of a large table.

The paper's table has 100,000 to 800,000 rows of 20 features in 20 chunks, the sample 1,000 rows.
The default table is smaller, so that it fits two cores.
"""

from __future__ import annotations

from typing import Any

from shoal.errors import UsageError
from shoal.experiments.parameters import check_counts
from shoal.experiments.workloads.libraries import Array, da, delayed
from shoal.farm.arrays import NDArray, np

try:
    from sklearn.datasets import make_classification
    from sklearn.svm import SVC
except ModuleNotFoundError as error:
    raise UsageError(
        f"This workload needs {error.name}: pip install 'shoal[experiments]'."
    ) from error

FEATURES = 20


def svc(rows: int = 10_000, chunks: int = 20, *, sample: int = 1000, seed: int = 0) -> Array:
    """Build a workflow that predicts the classes of all rows, drawing features by chunk."""
    check_counts("svc", rows=rows, chunks=chunks, sample=sample)
    check_counts("svc", least=0, seed=seed)
    if rows % chunks:
        raise UsageError(f"svc(rows={rows}, chunks={chunks}): give a multiple of the chunks.")
    model = delayed(fitted, pure=True)(sample, seed)
    predicted = delayed(predictions, pure=True)
    size = rows // chunks
    parts = [predicted(model, size, seed + 1 + number) for number in range(chunks)]
    return da.concatenate([da.from_delayed(part, (size,), dtype=int) for part in parts])


def fitted(sample: int, seed: int) -> Any:
    """Fit a classifier to a sample."""
    features, classes = make_classification(sample, FEATURES, random_state=seed)
    return SVC(gamma="scale").fit(features, classes)


def predictions(model: Any, rows: int, seed: int) -> NDArray[np.int64]:
    """Predict the classes of a chunk."""
    features = generate_features(rows, seed)
    found: NDArray[np.int64] = model.predict(features)
    return found


def generate_features(rows: int, seed: int) -> NDArray[np.float64]:
    """Draw the features of a chunk."""
    return np.random.default_rng(seed).normal(size=(rows, FEATURES))
