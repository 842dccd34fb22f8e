"""A Dask graph becomes Shoal outputs: which tasks, with which names and wiring."""

from __future__ import annotations

import os
import subprocess
import sys
from operator import add, neg
from typing import Any

import dask
import dask.array as da
import pytest
from dask._task_spec import Alias, DataNode, Dict, List, Task, TaskRef, convert_legacy_graph

from shoal import Resources, Workflow
from shoal.errors import UsageError
from shoal.integrations.dask.graph import Conversion
from shoal.workflow import program


def converted(graph: dict[Any, Any], *keys: Any, **options: Any) -> Conversion:
    return Conversion(convert_legacy_graph(graph), keys, **options)


def names(conversion: Conversion) -> list[str]:
    return list(Workflow.of(*conversion.sinks.values()).calls)


def test_legacy_tuples_are_tasks() -> None:
    workflow = Workflow.of(*converted({"x": 1, "y": (add, "x", 2)}, "y").sinks.values())
    (call,) = workflow.calls.values()
    assert call.task.name == "y"
    assert call.args == (add, 1, 2)


def test_history_knows_a_task_by_its_program_and_its_prefix() -> None:
    (output,) = converted({("sum-1f3a2b4c", 0): (add, 1, 2)}, ("sum-1f3a2b4c", 0)).sinks.values()
    assert (output.task.name, output.task.key) == ("sum", f"{program()}:sum")


def test_data_and_aliases_are_no_tasks() -> None:
    graph = {
        "data": DataNode("data", 7),
        "alias": Alias("alias", "data"),
        "task": Task("task", neg, TaskRef("alias")),
        "other": Alias("other", "task"),
    }
    conversion = converted(graph, "alias", "other", "data")
    assert names(conversion) == ["task#0"]
    assert conversion.result({"task": -7}) == {"alias": 7, "other": -7, "data": 7}


def test_a_graph_of_data_needs_no_run() -> None:
    conversion = converted({"x": 1, "finalize-1": (sum, ["x", 2])}, "finalize-1", "x")
    assert not conversion.sinks
    assert conversion.result({}) == {"finalize-1": 3, "x": 1}


def test_outputs_go_into_nested_arguments() -> None:
    graph = {
        "a": Task("a", neg, 1),
        "b": Task("b", neg, 2),
        "c": Task("c", dict, List(TaskRef("a"), List(TaskRef("b"))), k=Dict({"x": TaskRef("a")})),
    }
    call = list(Workflow.of(*converted(graph, "c").sinks.values()).calls.values())[-1]
    assert call.args[0] is dict
    assert [ref.task for ref in (call.args[1][0], call.args[1][1][0], call.kwargs["k"]["x"])] == [
        "a#0",
        "b#0",
        "a#0",
    ]


def test_chained_tasks_are_fused() -> None:
    graph = {"a": (neg, 1), "b": (neg, "a"), "c": (neg, "b"), "d": (add, "c", "c")}
    assert names(converted(graph, "d")) == ["a-b-c-d#0"]
    assert names(converted(graph, "d", each=True)) == ["a#0", "b#0", "c#0", "d#0"]


def test_requested_keys_are_not_fused_away() -> None:
    graph = {"a": (neg, 1), "b": (neg, "a"), "c": (neg, "b")}
    assert names(converted(graph, "b", "c")) == ["a-b#0", "c#0"]


def test_an_output_with_two_consumers_is_not_fused_away() -> None:
    graph = {"a": (neg, 1), "b": (neg, "a"), "c": (neg, "a"), "d": (add, "b", "c")}
    assert names(converted(graph, "d")) == ["a#0", "b#0", "c#0", "d#0"]


def test_a_chain_passes_aliases_and_data() -> None:
    graph = {
        "n": 5,
        "a": Task("a", neg, 1),
        "b": Alias("b", "a"),
        "c": Task("c", add, TaskRef("b"), TaskRef("n")),
    }
    (output,) = converted(graph, "c").sinks.values()
    assert output.task.name == "a-c"
    assert output.task.function(*output.args) == 4


def test_the_final_assembly_is_left_to_the_client() -> None:
    graph = {"a-1": (neg, 1), "b-1": (neg, 2), "finalize-1": (max, ["a-1", "b-1"])}
    conversion = converted(graph, "finalize-1")
    assert names(conversion) == ["a#0", "b#0"]
    assert conversion.result({"a-1": -1, "b-1": -2}) == {"finalize-1": -1}


def test_names_are_the_keys_prefixes() -> None:
    token = "0123456789abcdef0123456789abcdef"
    graph = {(f"sum-{token}", 0): (neg, 1), f"add-{token}": (neg, 2), "#": (neg, 3), 9: (neg, 4)}
    found = names(converted(graph, *graph))
    assert found == ["sum#0", "add#0", "_#0", "Other#0"]


@pytest.mark.slow
def test_the_fingerprint_is_the_same_in_every_process() -> None:
    script = (
        "import dask.array as da\n"
        "from dask._task_spec import convert_legacy_graph\n"
        "from shoal import Workflow\n"
        "from shoal.integrations.dask.graph import Conversion\n"
        "x = da.random.random((40, 40), chunks=(10, 10))\n"
        "def get(dsk, keys):\n"
        "    graph = convert_legacy_graph(dsk.__dask_graph__())\n"
        "    sinks = Conversion(graph, keys).sinks\n"
        "    print(Workflow.of(*sinks.values()).fingerprint())\n"
        "    return [0]\n"
        "(x @ (x.T * x + x[:, :1]) - x.mean(axis=0)).sum(axis=1).compute(scheduler=get)\n"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(seen) == 1


def test_inputs_of_fused_tasks_are_in_the_order_of_their_use() -> None:
    for number in range(20):  # Dask sorts them by hash, so differently each time
        sources = [f"{name}{number}" for name in ("x", "y", "z")]
        graph: dict[Any, Any] = {key: Task(key, neg, 1) for key in sources}
        inner = Task("inner", max, *map(TaskRef, sources))
        graph["outer"] = Task.fuse(inner, Task("end", neg, TaskRef("inner")), key="outer")
        (output,) = converted(graph, "outer").sinks.values()
        assert [arg.task.name for arg in output.args[-3:]] == sources


def test_different_data_have_the_same_fingerprint() -> None:
    def fingerprint(size: int) -> str:
        found: list[str] = []

        def get(dsk: Any, keys: Any) -> Any:
            conversion = converted(dsk.__dask_graph__(), *keys)
            found.append(Workflow.of(*conversion.sinks.values()).fingerprint())
            return [0]

        da.random.random((size, size), chunks=size // 2).sum().compute(scheduler=get)
        return found[0]

    assert fingerprint(10) == fingerprint(20)


def test_annotations_become_resources_and_retries() -> None:
    annotations = {
        "resources": {"a": {"memory_mb": 512, "cpus": 2}, "b": {"MEMORY": 2**30}},
        "retries": {"a": 3},
    }
    graph = {"a": (neg, 1), "b": (neg, "a"), "c": (neg, "b")}
    tasks = {
        call.task.name: (call.task.resources, call.task.retries)
        for call in Workflow.of(
            *converted(graph, "c", annotations=annotations).sinks.values()
        ).calls.values()
    }
    assert tasks == {
        "a": (Resources(512, 2), 3),
        "b": (Resources(1024), 0),
        "c": (None, 0),
    }


def test_resources_that_no_worker_has_are_rejected() -> None:
    with pytest.raises(UsageError, match="GPU"):
        converted({"a": (neg, 1)}, "a", annotations={"resources": {"a": {"GPU": 1}}})


def test_annotations_of_delayed_reach_the_graph() -> None:
    with dask.annotate(retries=2):
        value = dask.delayed(neg)(1)
    seen: list[Any] = []

    def get(dsk: Any, keys: Any) -> Any:
        seen.append(dsk.__dask_annotations__())
        return [0]

    value.compute(scheduler=get)
    assert list(seen[0]["retries"].values()) == [2]


def test_missing_keys_raise_the_same_error_as_in_dask() -> None:
    with pytest.raises(KeyError, match="y"):
        converted({"x": 1}, "y")
    with pytest.raises(ValueError, match="Missing dependency y for dependents"):
        converted({"x": Task("x", neg, TaskRef("y"))}, "x")


def test_cycles_are_an_error() -> None:
    with pytest.raises(RuntimeError, match="Cycle detected in Dask"):
        converted({"x": (neg, "y"), "y": (neg, "x")}, "x")


@pytest.mark.slow
def test_a_long_chain_is_converted() -> None:
    graph: dict[Any, Any] = {0: Task(0, neg, 1)}
    graph |= {i: Task(i, neg, TaskRef(i - 1)) for i in range(1, 20_000)}
    assert len(converted(graph, 19_999, each=True).outputs) == 20_000
    (output,) = converted(graph, 19_999).sinks.values()
    assert output.task.function(*output.args) == 1
