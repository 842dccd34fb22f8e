"""Measure the workflows of the papers: `python -m shoal.experiments.measure_shapes FILE`.

Each task is called in this process, in the order of the workflow, three times; the
smallest CPU time counts, because other load only adds to it. Numeric libraries get
one thread. An output's size is that of its pickle with its buffers.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from shoal.experiments.shapes import Shape, ShapeTask, encoded, in_workflow_order
from shoal.types import TaskId
from shoal.worker.package import constant_sizes
from shoal.workflow import Call, Output, Ref, Workflow

REPEATS = 3


def measured(name: str, output: Output[Any], about: str) -> Shape:
    """Measure the shape of a workflow."""
    return evaluated(name, output, about)[0]


def evaluated(name: str, output: Output[Any], about: str) -> tuple[Shape, Any]:
    """Measure the shape of a workflow, and return it with the result."""
    workflow = Workflow.of(output)
    numbers = {task: number for number, task in enumerate(workflow.calls)}
    large: dict[TaskId, int] = {}
    sizes = constant_sizes(workflow)
    constants: list[int] = []
    for named in sizes.values():
        for constant, nbytes in named.items():
            if constant not in large:
                large[constant] = len(constants)
                constants.append(nbytes)
    values: dict[TaskId, Any] = {}
    tasks = []
    for task, call in workflow.calls.items():
        seconds, values[task] = _timed(lambda c=call: _called(c, values))  # type: ignore[misc]
        tasks.append(
            ShapeTask(
                call.task.name,
                tuple(numbers[source] for source in workflow.upstream[task]),
                tuple(large[constant] for constant in sizes.get(task, {})),
                round(seconds, 6),
                _nbytes(values[task]),
            )
        )
    return Shape(name, tasks, constants, about), values[workflow.sinks[0]]


def measured_graph(name: str, collection: Any, about: str) -> Shape:
    """Measure the shape of a Dask collection."""
    import dask
    from dask._task_spec import convert_legacy_graph

    (optimized,) = dask.optimize(collection)
    nodes = convert_legacy_graph(dict(optimized.__dask_graph__()))
    order = sorted(nodes, key=dask.order.order(nodes).__getitem__)
    numbers: dict[Any, int] = {}
    values: dict[Any, Any] = {}
    tasks: list[ShapeTask] = []
    for key in order:
        node = nodes[key]
        sources = sorted(node.dependencies, key=numbers.__getitem__)
        seconds, values[key] = _timed(
            lambda n=node, s=sources: n({source: values[source] for source in s})  # type: ignore[misc]
        )
        numbers[key] = len(tasks)
        called = dask.utils.key_split(key)
        upstream = tuple(numbers[source] for source in sources)
        tasks.append(ShapeTask(called, upstream, (), round(seconds, 6), _nbytes(values[key])))
    taken = {source for task in tasks for source in task.upstream}
    ends = tuple(number for number in range(len(tasks)) if number not in taken)
    if len(ends) > 1:  # the client would assemble these
        tasks.append(ShapeTask("together", ends, (), 0.0, 0))
    return in_workflow_order(Shape(name, tasks, [], about))


def _timed(what: Callable[[], Any]) -> tuple[float, Any]:
    best = float("inf")
    for _ in range(REPEATS):
        begin = time.process_time()
        value = what()
        best = min(best, time.process_time() - begin)
    return best, value


def _called(call: Call, values: Mapping[TaskId, Any]) -> Any:
    args = [_resolved(value, values) for value in call.args]
    kwargs = {name: _resolved(value, values) for name, value in call.kwargs.items()}
    for where, source in call.refs.items():
        place: Any = args if isinstance(where, int) else kwargs
        place[where] = values[source]
    return call.task.function(*args, **kwargs)


def _resolved(value: Any, values: Mapping[TaskId, Any]) -> Any:
    if isinstance(value, Ref):
        return values[value.task]
    if isinstance(value, list | tuple):
        return type(value)(_resolved(item, values) for item in value)
    return value


def _nbytes(value: Any) -> int:
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(value, 5, buffer_callback=buffers.append)
    return len(head) + sum(buffer.raw().nbytes for buffer in buffers)


def with_one_thread(module: str) -> None:
    """Restart this module's program with one thread for numeric libraries, unless it has."""
    if "OMP_NUM_THREADS" not in os.environ:
        os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
        os.execv(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]])


def main(path: str) -> None:
    """Measure all workflows and write their shapes to a file."""
    from shoal.experiments.image_transformation import image_transformation
    from shoal.experiments.matrix_multiplication import matrix_multiplication
    from shoal.experiments.text_analysis import generate_text, text_analysis
    from shoal.experiments.tree_reduction import tree_reduction
    from shoal.experiments.workloads.linear import gemm, svd1, svd2
    from shoal.experiments.workloads.svc import svc
    from shoal.experiments.workloads.tree import tr

    text = generate_text(750_000)
    shapes = [
        measured("matrix", matrix_multiplication(), "two matrices of 2000 x 2000"),
        measured("tree", tree_reduction(), "64 numbers"),
        measured("text", text_analysis(text), "750,000 lines"),
        measured("image", image_transformation(), "3000 x 2001 pixels"),
        measured_graph("tr", tr(1024), "1,024 numbers"),
        measured_graph("gemm", gemm(4000, 500), "4,000 x 4,000 in chunks of 500"),
        measured_graph("svd1", svd1(80_000, 100, 2_500)[1], "80,000 x 100 in chunks of 2,500"),
        measured_graph("svd2", svd2(4000, 500)[1], "4,000 x 4,000 in chunks of 500, rank 5"),
        measured_graph("svc", svc(100_000), "100,000 rows in 20 chunks"),
    ]
    kept = {shape.name: encoded(shape) for shape in shapes}
    lines = [f"{json.dumps(name)}:{json.dumps(shape, separators=(',', ':'))}"
             for name, shape in kept.items()]  # fmt: skip
    Path(path).write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    with_one_thread("shoal.experiments.measure_shapes")
    main(sys.argv[1])
