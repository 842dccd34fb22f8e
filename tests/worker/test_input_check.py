"""A task that changes its inputs in place is found, and the inputs are named."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from shoal.errors import InputChanged
from shoal.execution.plan import Placement, Plan
from shoal.types import Resources, TaskId, WorkerId
from shoal.worker.input_check import InputCheck
from shoal.worker.package import Unpacked, pack, unpack
from shoal.workflow import Output, Workflow, task

KEY = bytes(32)


@task
def make() -> Any: ...


def unpacked(output: Output[Any]) -> Unpacked:
    workflow = Workflow.of(output)
    placement = Placement(WorkerId("w0"), Resources(2048))
    packed = pack(Plan(workflow, dict.fromkeys(workflow.calls, placement)), KEY)
    return unpack(b"".join(packed.packages[WorkerId("w0")]), KEY, WorkerId("w0"))


def run(function: Callable[..., Any], *args: Any, made: Any = None, **kwargs: Any) -> Any:
    """Run a task with checked inputs and return its value; `make()` returns a given value."""
    package = unpacked(task(function, name="act")(*args, **kwargs))
    constants = package.part.constants.get(TaskId("act#0"), ())
    values = {TaskId("make#0"): made, **{name: np.zeros(10_000) for name in constants}}
    return InputCheck(package).run(TaskId("act#0"), values)


@dataclass
class Basket:
    fruits: list[str] = field(default_factory=list)


def put(basket: Basket) -> None:
    basket.fruits.append("fig")


def fill(array: Any) -> None:
    array[3] = 1


@pytest.mark.parametrize(
    ("change", "made"),
    [
        (lambda x: x.append(4), [1, 2, 3]),
        (lambda x: x.sort(), [3, 1]),
        (lambda x: x.update(b=2), {"a": 1}),
        (lambda x: x["new"], defaultdict(list)),
        (lambda x: x[0].add(2), [{1}]),
        (put, Basket()),
        (fill, np.zeros(4)),
        (fill, bytearray(4)),
        (lambda x: next(x), iter([1, 2])),
    ],
)
def test_an_output_that_is_changed_is_named(change: Callable[[Any], Any], made: Any) -> None:
    with pytest.raises(InputChanged) as failure:
        run(change, make(), made=made)
    assert failure.value.task == "act#0"
    assert failure.value.reason == "it changed argument 1 (the output of 'make#0') in place"
    assert "Modify a copy instead" in str(failure.value)


def test_a_constant_that_is_changed_is_named() -> None:
    with pytest.raises(InputChanged, match=r"it changed argument 2 in place\."):
        run(lambda first, second: second.append(first), 1, [1])
    with pytest.raises(InputChanged, match="it changed argument 'named' in place"):
        run(lambda *, named: named.clear(), named={"a": 1})
    with pytest.raises(InputChanged, match="it changed argument 1 in place"):
        run(fill, np.zeros(10_000))


def test_a_value_within_an_argument_that_is_changed_is_named() -> None:
    with pytest.raises(InputChanged, match="the output of 'make#0' in argument 1 in place"):
        run(lambda parts: parts["all"][0].clear(), {"all": [make()]}, made=[1])
    with pytest.raises(InputChanged, match="it changed a value in argument 1 in place"):
        run(lambda parts: put(parts[1]), [make(), Basket()])


def test_a_list_built_for_the_call_may_be_changed() -> None:
    assert run(lambda parts: parts.pop(), [make(), 5]) == 5


def test_all_inputs_that_are_changed_are_named() -> None:
    with pytest.raises(InputChanged, match=r"it changed argument 1 and argument 3 in place"):
        run(lambda a, b, c: (a.append(1), c.append(1)), [], [], [])


def test_an_exception_after_the_change_is_included() -> None:
    def change(x: list[int]) -> None:
        x.append(1)
        raise ValueError("too many")

    with pytest.raises(InputChanged, match="in place, then raised ValueError: too many") as failure:
        run(change, [1])
    assert isinstance(failure.value.__cause__, ValueError)


def test_a_tasks_exception_is_raised_if_it_changed_nothing() -> None:
    with pytest.raises(ZeroDivisionError):
        run(lambda x: x / 0, 1)


class Restless:
    """A value that is pickled differently each time."""

    count = 0

    def __reduce__(self) -> Any:
        Restless.count += 1
        return Restless, (), {"count": Restless.count}


def numbers() -> Iterator[int]:
    yield from range(3)


@pytest.mark.parametrize("made", [numbers(), threading.Lock(), Restless()])
def test_values_without_a_reliable_digest_are_not_checked(made: Any) -> None:
    assert run(lambda given: 7, make(), made=made) == 7
    assert run(lambda given: list(given), make(), made=numbers()) == [0, 1, 2]


seen: list[int] = []


def remember(x: int) -> int:
    seen.append(x)
    return len(seen)


def test_a_function_passed_as_an_input_may_change_its_closure() -> None:
    assert run(lambda call, x: call(x), make(), 5, made=remember) == 1


def test_reading_an_input_changes_nothing() -> None:
    table = pytest.importorskip("pandas").DataFrame({"a": [2, 1], "b": [1.0, 2.0], "c": ["x", "y"]})
    table["d"] = 1
    run(lambda t: (t.values, t["a"], t.groupby("c").sum(), t.index.is_unique), make(), made=table)


def test_the_time_for_digests_is_reported_once() -> None:
    package = unpacked(task(lambda x: x, name="act")(bytearray(1000)))
    check = InputCheck(package)
    check.run(TaskId("act#0"), {})
    assert check.spent() > 0
    assert check.spent() == 0
