"""Define matrix multiplication, a workflow of 17 tasks with large constant arguments.

    level  tasks
        0  multiply   16   a block of rows by a block of columns
        1  assemble    1   the products side by side

Two matrices of 2000 x 2000 floats are split into 4 blocks of rows and 4 of columns, 8 MB each and
each an argument of 4 tasks; a product has 2 MB, the result 32 MB. All values are integers, so that
the result is exactly that of `a @ b`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from shoal.errors import UsageError
from shoal.experiments.parameters import check_counts
from shoal.farm.arrays import NDArray, np
from shoal.workflow import Output, task

Matrix: TypeAlias = NDArray[np.float64]


def generate_matrices(size: int, seed: int = 0) -> tuple[Matrix, Matrix]:
    """Generate two square matrices of integers from -9 to 9."""
    rng = np.random.default_rng(seed)
    a, b = rng.integers(-9, 10, (2, size, size)).astype(np.float64)
    return a, b


def matrix_multiplication(size: int = 2000, blocks: int = 4, *, seed: int = 0) -> Output[Matrix]:
    """Build the workflow that multiplies two generated matrices: 17 tasks by default."""
    check_counts("matrix_multiplication", size=size, blocks=blocks)
    check_counts("matrix_multiplication", least=0, seed=seed)
    if blocks > size:
        raise UsageError(
            f"matrix_multiplication(size={size}, blocks={blocks}): give at most a block for each "
            "row."
        )
    a, b = generate_matrices(size, seed)
    rows = np.array_split(a, blocks)
    columns = [np.ascontiguousarray(block) for block in np.array_split(b, blocks, axis=1)]
    return assemble([[multiply(row, column) for column in columns] for row in rows])


@task
def multiply(rows: Matrix, columns: Matrix) -> Matrix:
    """Compute a block of the product."""
    product: Matrix = rows @ columns
    return product


@task
def assemble(products: Sequence[Sequence[Matrix]]) -> Matrix:
    """Assemble the blocks into one matrix."""
    return np.block([list(row) for row in products])
