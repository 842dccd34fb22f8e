"""What a task's time and the size of its output may depend on.

1. The size of its whole input, the sizes of single inputs if there are few, and how many there are.
2. Its small constant arguments. Numbers count by their value, and containers and texts by their
   length. Texts, truth values and None are only equal or different. History has digests of texts
   rather than the texts themselves.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from math import isfinite, log
from typing import NamedTuple

from shoal.execution.costs import Costs
from shoal.metadata.fits import SINGLE, Features
from shoal.types import TaskId
from shoal.workflow import Call, Workflow

TOTAL = "nbytes"
"""The feature for the size of the whole input."""
COUNT = "count"
FEW = 4
"""How many inputs a task may have for their sizes to count one by one."""
MOST = 16
"""How many arguments of a call count."""
Value = float | str
"""A constant: a number, or what is only equal or different."""

_SLIGHT_NBYTES = 1024
"""Sizes below this hardly affect how long a task takes."""
_SLIGHT = 1e-3
"""Numbers below this are hardly different from 0."""
_LARGEST = 1e300
_LENGTHS = (str, bytes, list, tuple, set, frozenset, dict)


def values_of(call: Call) -> dict[str, Value]:
    """Return a call's small constant arguments, by position or name."""
    found: dict[str, Value] = {}
    for where, value in (*enumerate(call.args), *call.kwargs.items()):
        if where in call.refs or where in call.nested:
            continue
        if len(found) >= MOST:
            break
        if isinstance(value, bool) or value is None:
            found[f"={where}"] = str(value)
        elif isinstance(value, int | float):
            if abs(value) < _LARGEST and isfinite(value):
                found[f"={where}"] = float(value)
        elif isinstance(value, _LENGTHS):
            found[f"len {where}"] = float(len(value))
            if type(value) is str and len(value) <= 1000:
                found[f"={where}"] = _digest(value)
    return found


class Amount(NamedTuple):
    """How much the small constants of a workflow ask for."""

    numbers: Mapping[str, float]
    """The sum over all calls of each task: numbers by value, containers and texts by length."""
    texts: int
    """A hash of the texts, which differs from process to process."""


def amount_of(workflow: Workflow) -> Amount:
    """Return how much the small constants of a workflow ask for; quick, for every run needs it."""
    numbers: dict[str, float] = {}
    texts = 0
    for call in workflow.calls.values():
        total = 0.0
        for value in (*call.args, *call.kwargs.values()) if call.kwargs else call.args:
            if value is None:  # most arguments: it stands for an output
                continue
            if type(value) is int or type(value) is float:
                if -_LARGEST < value < _LARGEST:
                    total += abs(value)
            elif isinstance(value, _LENGTHS):
                total += len(value)
                if type(value) is str:
                    texts ^= hash(value)
        if total:
            key = call.task.key
            numbers[key] = numbers.get(key, 0.0) + total
    return Amount(numbers, texts)


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(errors="replace"), digest_size=6).hexdigest()


def features_of(
    nbytes: int, inputs: Sequence[int], count: int, values: Mapping[str, Value]
) -> Features:
    """Return what an execution may depend on, as logarithms.

    Args:
        nbytes: The size of the whole input.
        inputs: The size of each input; empty if there are many, or only one.
        count: How many inputs there are.
        values: The constant arguments.
    """
    found: dict[str, float | str] = {TOTAL: size(nbytes)}
    if count > 1:
        found[COUNT] = log(count)
    for number, each in enumerate(inputs):
        found[f"{SINGLE}{number}"] = size(each)
    for name, value in values.items():
        if isinstance(value, str):
            found[name] = value
        elif value >= 0:
            found[name] = log(value + _SLIGHT)
        else:
            found[name] = repr(value)
    return found


def size(nbytes: float) -> float:
    """Return the logarithm of a size."""
    return log(nbytes + _SLIGHT_NBYTES)


class Inputs:
    """The sizes of each task's inputs."""

    def __init__(
        self, workflow: Workflow, constants: Mapping[TaskId, Mapping[TaskId, int]]
    ) -> None:
        self._upstream = workflow.upstream
        self._constants = constants

    def count(self, task: TaskId) -> int:
        """Return how many inputs a task has."""
        return len(self._upstream[task]) + len(self._constants.get(task, ()))

    def sizes(self, task: TaskId, outputs: Mapping[TaskId, int]) -> tuple[int, ...]:
        """Return the size of each input, given those of outputs; nothing unless there are a few."""
        if not 1 < self.count(task) <= FEW:
            return ()
        constants = self._constants.get(task, {})
        return (*(outputs.get(source, 0) for source in self._upstream[task]), *constants.values())

    def expect(self, costs: Costs, outputs: dict[TaskId, int]) -> None:
        """Add the size of every output that these costs predict, in the workflow's order."""
        for task, sources in self._upstream.items():
            nbytes = sum([outputs[source] for source in sources])
            nbytes += sum(self._constants.get(task, {}).values())
            outputs[task] = costs.output_nbytes(task, nbytes)
