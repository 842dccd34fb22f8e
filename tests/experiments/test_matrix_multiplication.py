"""The matrix multiplication: its shape, its large arguments, and its result, exactly `a @ b`."""

from typing import Any

import numpy as np
import pytest

from evaluating import evaluated, shape
from shoal.errors import UsageError
from shoal.experiments.matrix_multiplication import generate_matrices, matrix_multiplication
from shoal.session import Session
from shoal.workflow import Workflow


def test_it_has_17_tasks_in_two_levels() -> None:
    workflow = Workflow.of(matrix_multiplication(8))
    assert len(workflow) == 17
    assert shape(workflow) == {(0, "multiply"): 16, (1, "assemble"): 1}


def test_eight_blocks_are_passed_to_four_tasks_each() -> None:
    calls = Workflow.of(matrix_multiplication(40)).calls.values()
    blocks = [block for call in calls if call.task.name == "multiply" for block in call.args]
    assert len(blocks) == 32
    assert len({id(block) for block in blocks}) == 8
    assert {block.shape for block in blocks} == {(10, 40), (40, 10)}
    assert all(block.flags.c_contiguous for block in blocks)


@pytest.mark.parametrize(("size", "blocks"), [(1, 1), (64, 4), (50, 4), (7, 7), (200, 3)])
def test_result_is_the_product(size: int, blocks: int) -> None:
    a, b = generate_matrices(size, seed=3)
    found = evaluated(matrix_multiplication(size, blocks, seed=3))
    assert found.shape == (size, size)
    np.testing.assert_array_equal(found, a @ b)


def test_the_seed_determines_the_matrices() -> None:
    np.testing.assert_array_equal(generate_matrices(9, 1), generate_matrices(9, 1))
    assert not np.array_equal(generate_matrices(9, 1), generate_matrices(9, 2))
    a, b = generate_matrices(9)
    assert not np.array_equal(a, b)


@pytest.mark.parametrize(
    "bad", [{"size": 0}, {"blocks": 0}, {"size": 3}, {"size": 2.5}, {"seed": -1}, {"seed": "x"}]
)
def test_matrices_that_cannot_be_cut_into_blocks_are_rejected(bad: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"matrix_multiplication\(.*at (least|most)"):
        matrix_multiplication(**bad)


@pytest.mark.real
def test_workers_compute_the_same_product(session: Session) -> None:
    found = session.compute(matrix_multiplication(90))[0]
    np.testing.assert_array_equal(found, evaluated(matrix_multiplication(90)))
