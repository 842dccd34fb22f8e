"""The package for a worker: functions by name or value, large constants once, named errors."""

import importlib
import os
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.client.references import referenced_modules
from shoal.errors import NotPicklable, ReactionError, Tampered, UsageError
from shoal.execution.events import Event
from shoal.execution.plan import Placement, Plan, PlannedPart
from shoal.execution.reactions import Order, Reaction, WorkerView
from shoal.storage.codec import decode
from shoal.storage.keys import signed_output
from shoal.types import Resources, TaskId, WorkerId
from shoal.worker.package import Packed, Unpacked, constant_sizes, pack, unpack
from shoal.workflow import Output, Workflow, task

KEY = bytes(32)


@task
def first(*values: Any, **named: Any) -> Any:
    return values[0] if values else named


def packed(*outputs: Output[Any]) -> Packed:
    workflow = Workflow.of(*outputs)
    placement = Placement(WorkerId("w0"), Resources(2048))
    return pack(Plan(workflow, dict.fromkeys(workflow.calls, placement)), KEY)


def unpacked(*outputs: Output[Any]) -> Unpacked:
    return unpack(b"".join(packed(*outputs).packages[WorkerId("w0")]), KEY, WorkerId("w0"))


def test_a_function_of_a_module_is_sent_by_name() -> None:
    assert unpacked(first(1)).functions == [(__name__, "first")]


def test_a_function_that_cannot_be_imported_is_sent_by_value() -> None:
    offset = 41
    local = task(lambda x: x + offset)
    found = unpacked(local(1))
    assert isinstance(found.functions[0], bytes)
    assert found.run(TaskId("<lambda>#0"), {}) == 42


def test_a_large_constant_is_packed_once_for_all_tasks() -> None:
    large = np.arange(100_000)
    equal = large.copy()
    found = packed(first(first(large, large), first(equal), key=large))
    assert len(found.constants) == 1
    [(name, blob)] = found.constants.items()
    assert np.array_equal(decode(b"".join(blob), KEY, signed_output(name)), large)
    assert set(found.parts[0].constants.values()) == {(name,)}


def test_large_constant_is_found_inside_containers_and_objects() -> None:
    class Holder:
        def __init__(self) -> None:
            self.array = np.zeros(100_000)

    assert len(packed(first([{"a": np.ones(100_000)}])).constants) == 1
    assert len(packed(first(Holder())).constants) == 1


def test_small_constants_travel_with_the_calls() -> None:
    found = packed(first(1, "two", [3.0], {"four": None}))
    assert not found.constants


def test_inputs_are_placed_where_the_call_expects_them() -> None:
    source = first(1)
    found = unpacked(first([source, (2, {"x": source})], y=source))
    assert found.run(TaskId("first#1"), {TaskId("first#0"): 7}) == [7, (2, {"x": 7})]


@pytest.mark.parametrize(
    ("output", "named"),
    [
        (first(threading.Lock()), "argument 1 of task 'first#0'"),
        (first(1, key=threading.Lock()), "argument 'key' of task 'first#0'"),
        (first([bytes(100_000), threading.Lock()]), "argument 1 of task 'first#0'"),
        (task(threading.Lock().acquire, name="odd")(), "the function of task 'odd'"),
    ],
)
def test_an_unpicklable_part_is_named(output: Output[Any], named: str) -> None:
    with pytest.raises(NotPicklable, match=named):
        packed(output)


def test_function_is_loaded_once_and_before_its_task_runs() -> None:
    found = unpacked(first(1), first(2))
    assert found.load(TaskId("first#0"))
    assert not found.load(TaskId("first#1"))


def test_an_error_during_an_import_says_which_module_and_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "breaks.py").write_text("raise LookupError('on purpose')")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = unpacked(first(1))
    found.functions[0] = ("breaks", "f")
    with pytest.raises(LookupError, match="on purpose") as raised:
        found.run(TaskId("first#0"), {})
    (note,) = raised.value.__notes__
    assert f"imported module 'breaks' on machine {os.uname().nodename}" in note


def test_an_argument_whose_module_is_missing_is_the_users_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "vanishes.py").write_text("class Thing: pass")
    monkeypatch.syspath_prepend(str(tmp_path))
    thing = importlib.import_module("vanishes").Thing()
    data = b"".join(packed(first(thing)).packages[WorkerId("w0")])
    (tmp_path / "vanishes.py").unlink()
    del sys.modules["vanishes"]
    importlib.invalidate_caches()
    with pytest.raises(UsageError, match=r"can't be loaded on .*: No module named 'vanishes'"):
        unpack(data, KEY, WorkerId("w0"))


def test_the_part_of_another_worker_is_rejected() -> None:
    data = b"".join(packed(first(1)).packages[WorkerId("w0")])
    with pytest.raises(Tampered, match="the part of worker w0 for worker w1"):
        unpack(data, KEY, WorkerId("w1"))


def test_a_copy_includes_its_call_and_constants() -> None:
    large = np.arange(100_000)
    workflow = Workflow.of(first(first(large, 1), 2))
    made, taken = workflow.calls
    placements = {
        made: Placement(WorkerId("w0"), Resources(2048), duplicable=True),
        taken: Placement(WorkerId("w1"), Resources(2048)),
    }
    found = pack(Plan(workflow, placements, expected={made: (1.0, 2.0)}), KEY)
    [constant] = found.constants
    package = unpack(b"".join(found.packages[WorkerId("w1")]), KEY, WorkerId("w1"))
    assert package.calls.functions.keys() == {made, taken}
    assert package.part.constants == {made: (constant,)}
    assert package.run(made, {TaskId(constant): "given"}) == "given"


def test_sizes_of_large_constants_are_known_without_pickling_them() -> None:
    array, text = np.zeros(10**6), "x" * 50_000
    outputs = [first(array, 1), first(array, key=text), first("small"), first([text] * 4)]
    sizes = [{*found.values()} for found in constant_sizes(Workflow.of(*outputs)).values()]
    assert sizes[0] == {8 * 10**6}
    assert sizes[1] == {8 * 10**6, 50_008}
    assert len(sizes) == 3
    assert next(iter(sizes[2])) == pytest.approx(200_000, rel=0.01)


def test_a_constant_shared_by_several_tasks_has_one_name() -> None:
    array = np.zeros(10**6)
    names = [
        set(found)
        for found in constant_sizes(Workflow.of(first(array), first(0, key=array))).values()
    ]
    assert names[0] == names[1]


class Reacting:
    """A reaction with something that may not be picklable."""

    def __init__(self, thing: Any) -> None:
        self.thing = thing

    def react(self, event: Event, worker: WorkerView) -> list[Order]:
        """Give no orders."""
        return []


def reacting(*reactions: Reaction) -> Packed:
    workflow = Workflow.of(first(1))
    placement = Placement(WorkerId("w0"), Resources(2048))
    placements = dict.fromkeys(workflow.calls, placement)
    return pack(Plan(workflow, placements, reactions=reactions), KEY)


def test_reactions_travel_with_the_part_by_value_if_need_be() -> None:
    class Local(Reacting): ...

    blob = reacting(Local(7), Reacting(8)).packages[WorkerId("w0")]
    part = unpack(b"".join(blob), KEY, WorkerId("w0")).part
    assert isinstance(part, PlannedPart)
    assert [each.thing for each in part.reactions if isinstance(each, Reacting)] == [7, 8]
    assert isinstance(part.reactions[1], Reacting)


def test_a_reaction_that_cannot_be_pickled_is_named() -> None:
    with pytest.raises(NotPicklable, match="the reaction Reacting can't be sent"):
        reacting(Reacting(threading.Lock()))


def _unloadable() -> None:
    raise ImportError("no such thing here")


class Unloadable:
    """Can be pickled, and not unpickled."""

    def __reduce__(self) -> Any:
        return _unloadable, ()


def test_a_reaction_that_cannot_be_loaded_is_named() -> None:
    blob = reacting(Reacting(Unloadable())).packages[WorkerId("w0")]
    said = "The reaction Reacting can't be loaded on machine .*: ImportError: no such thing here"
    with pytest.raises(ReactionError, match=said):
        unpack(b"".join(blob), KEY, WorkerId("w0"))


def test_the_modules_that_a_reaction_needs_are_found() -> None:
    found = referenced_modules(reacting(Reacting(Unloadable())).pickles())
    assert __name__ in found
