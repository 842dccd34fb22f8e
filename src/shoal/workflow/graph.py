"""Define `Workflow`, the immutable graph of task calls that some outputs depend on.

1. Tasks are in the post-order of a depth-first search from the sinks: each task comes after its
   upstream tasks, and related tasks are adjacent, whatever order they were created in.
2. The fingerprint identifies the wiring but ignores the values of constants, so that runs on
   different data share history.
3. No function recurses over the graph, so a chain of 100,000 tasks works like any other workflow.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from shoal.errors import UsageError, WorkflowError
from shoal.types import Resources, TaskId
from shoal.workflow.output import Output
from shoal.workflow.task import Task

Outputs = Output[Any] | Sequence[Output[Any]]
"""The outputs to compute: one, or a list of them."""
Where = int | str
"""Which argument of a call: its position or its name."""

_CONTAINERS = frozenset((list, tuple, dict))
_PLAIN = frozenset((str, bytes, int, float, bool, type(None)))
_ADDRESS = re.compile(r" at 0x[0-9A-Fa-f]+")


@dataclass(frozen=True, slots=True)
class Ref:
    """A placeholder, inside a nested argument, for the output of an upstream task."""

    task: TaskId


@dataclass(frozen=True, slots=True)
class Call:
    """One task of a workflow: a function and its arguments."""

    task: Task[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    refs: dict[Where, TaskId]
    """The arguments that are outputs of upstream tasks; `args` and `kwargs` have None there."""
    nested: tuple[Where, ...]
    """The arguments that contain `Ref`s inside lists, tuples or dicts."""


@dataclass(frozen=True)
class Workflow:
    """An immutable graph of task calls, built from outputs."""

    calls: Mapping[TaskId, Call]
    """Every task's call, in an order in which each comes after its upstream tasks."""
    upstream: Mapping[TaskId, tuple[TaskId, ...]]
    """The tasks whose outputs each task takes, without repeats, in the order of its arguments."""
    sinks: tuple[TaskId, ...]
    """The tasks whose outputs were requested, in that order; may contain repeats."""
    needs: Mapping[str, int] = field(default_factory=dict, compare=False)
    """The memory that tasks turned out to need, in MB, by task key."""
    title: str | None = field(default=None, compare=False)
    """The name that the user gave the workflow, if any."""

    def named(self, title: str | None) -> Workflow:
        """Return this workflow with the name that the user gave it, if any."""
        return replace(self, title=title) if title else self

    def needing(self, needs: Mapping[str, int]) -> Workflow:
        """Return this workflow with the memory that its tasks turned out to need."""
        return replace(self, needs=needs) if needs else self

    def resources(self, task: TaskId) -> Resources | None:
        """Return the resources that a task requests or turned out to need; None if neither."""
        found = self.calls[task].task
        need, asked = self.needs.get(found.key, 0), found.resources
        if need <= (asked.memory_mb if asked else 0):
            return asked
        return Resources(need, asked.cpus if asked else None)

    @staticmethod
    def of(*given: Outputs) -> Workflow:
        """Build the workflow of these outputs, given one by one or as one list."""
        outputs: Any = given
        if len(given) == 1 and isinstance(given[0], list | tuple):
            outputs = tuple(given[0])
        if not outputs:
            raise UsageError("Nothing to compute: pass at least one output.")
        for output in outputs:
            if not isinstance(output, Output):
                raise UsageError(
                    f"{output!r} is not an output of a task. Call a function decorated with @task, "
                    "and pass its outputs, or one list of them."
                )
        ids: dict[int, TaskId] = {}
        counts: dict[str, int] = {}
        calls: dict[TaskId, Call] = {}
        upstream: dict[TaskId, tuple[TaskId, ...]] = {}
        for output, scan in _ordered(outputs):
            name = output.task.name
            count = counts[name] = counts.get(name, -1) + 1
            task = ids[id(output)] = TaskId(f"{name}#{count}")
            calls[task] = scan.call(output, ids)
            upstream[task] = tuple(dict.fromkeys([ids[id(source)] for source in scan.sources]))
        return Workflow(calls, upstream, tuple([ids[id(output)] for output in outputs]))

    def __len__(self) -> int:
        return len(self.calls)

    @cached_property
    def _downstream(self) -> dict[TaskId, list[TaskId]]:
        downstream: dict[TaskId, list[TaskId]] = {task: [] for task in self.calls}
        for task, sources in self.upstream.items():
            for source in sources:
                downstream[source].append(task)
        return downstream

    def downstream(self, task: TaskId) -> tuple[TaskId, ...]:
        """Return the tasks that take this task's output."""
        return tuple(self._downstream[task])

    def after(self, task: TaskId) -> tuple[TaskId, ...]:
        """Return all tasks that depend on this one, directly or indirectly, in order."""
        reached = {task}
        for other, sources in self.upstream.items():
            if not reached.isdisjoint(sources):
                reached.add(other)
        return tuple(other for other in self.calls if other in reached and other != task)

    def numbered(self, numbers: Iterable[int]) -> list[TaskId]:
        """The tasks at these positions; a number that no task has is left out."""
        tasks = list(self.calls)
        return [tasks[number] for number in numbers if 0 <= number < len(tasks)]

    @property
    def name(self) -> str:
        """The workflow's name: the user's, or that of the last sink's task."""
        return self.title or self.calls[self.sinks[-1]].task.name

    @property
    def key(self) -> str:
        """The workflow's key in the history: the user's name, or where the last sink is defined."""
        return self.title or self.calls[self.sinks[-1]].task.key

    def fingerprint(self) -> str:
        """Return a hash of the wiring: the tasks, and which outputs are which arguments."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        index = {task: str(i) for i, task in enumerate(self.calls)}
        lines = [_wiring(call, index) for call in self.calls.values()]
        lines.append(" ".join(index[sink] for sink in self.sinks))
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:32]

    def draw(self) -> str:
        """Draw the workflow as text."""
        from shoal.workflow.drawing import draw_text

        return draw_text(self)

    def _repr_html_(self) -> str:
        from shoal.workflow.drawing import draw_svg

        return draw_svg(self)


def needed(*outputs: Output[Any]) -> list[Output[Any]]:
    """Return all outputs that these depend on, in the order of their workflow's tasks."""
    return [output for output, _ in _ordered(outputs)]


class _Scan:
    """The outputs among a call's arguments, and which arguments contain some inside."""

    __slots__ = ("nested", "sources")

    def __init__(self, output: Output[Any]) -> None:
        self.sources: list[Output[Any]] = []
        self.nested: list[Where] = []
        for position, value in enumerate(output.args):
            self._scan(position, value, output)
        for name, value in output.kwargs.items():
            self._scan(name, value, output)

    def _scan(self, where: Where, value: Any, output: Output[Any]) -> None:
        if type(value) is Output:
            self.sources.append(value)
        elif type(value) in _CONTAINERS:
            found, repeats = _outputs_in(value)
            if repeats and _holds_itself(value):
                raise WorkflowError(
                    f"{_argument(where)} of {output.task.name!r} is a {type(value).__name__} that "
                    "contains itself; pass one that doesn't."
                )
            if found:
                self.sources.extend(found)
                self.nested.append(where)

    def call(self, output: Output[Any], ids: dict[int, TaskId]) -> Call:
        if not self.sources:
            return Call(output.task, output.args, output.kwargs, {}, ())
        args, kwargs = list(output.args), output.kwargs and dict(output.kwargs)
        refs: dict[Where, TaskId] = {}
        for position, value in enumerate(args):
            if type(value) is Output:
                refs[position] = ids[id(value)]
                args[position] = None
        for name, value in kwargs.items():
            if type(value) is Output:
                refs[name] = ids[id(value)]
                kwargs[name] = None
        for where in self.nested:
            arguments: Any = args if isinstance(where, int) else kwargs
            try:
                arguments[where] = _with_refs(arguments[where], ids)
            except RecursionError as error:
                raise WorkflowError(
                    f"{_argument(where)} of {output.task.name!r} nests outputs too deeply; pass "
                    "them in a flatter list, tuple or dict."
                ) from error
        return Call(output.task, tuple(args), kwargs, refs, tuple(self.nested))


def _ordered(sinks: tuple[Output[Any], ...]) -> Iterator[tuple[Output[Any], _Scan]]:
    """Yield all outputs that the sinks depend on, in depth-first post-order."""
    open_: dict[int, _Scan] = {}
    done: set[int] = set()
    stack = list(reversed(sinks))
    while stack:
        output = stack[-1]
        key = id(output)
        if key in done:
            stack.pop()
        elif key in open_:
            stack.pop()
            done.add(key)
            yield output, open_.pop(key)
        else:
            scan = open_[key] = _Scan(output)
            for source in reversed(scan.sources):
                if id(source) in open_:
                    raise WorkflowError(
                        f"The output of {source.task.name!r} depends on itself: one of its "
                        "arguments was modified after the call, and now contains the output or "
                        "one that depends on it."
                    )
                if id(source) not in done:
                    stack.append(source)


def _argument(where: Where) -> str:
    return f"Argument {where + 1 if isinstance(where, int) else repr(where)}"


def _outputs_in(container: Any) -> tuple[list[Output[Any]], bool]:
    """Return the outputs at any depth inside a container, and whether any container repeats."""
    found: list[Output[Any]] = []
    seen: set[int] = set()
    repeats = False
    stack = [container]
    while stack:
        top = stack.pop()
        if type(top) is Output:
            found.append(top)
        elif type(top) in _CONTAINERS:
            if id(top) in seen:
                repeats = True
            else:
                seen.add(id(top))
                stack.extend(reversed(top.values() if type(top) is dict else top))
    return found, repeats


def _holds_itself(container: Any) -> bool:
    """Return whether a container, or one inside it, contains itself."""
    path: set[int] = set()
    done: set[int] = set()
    stack = [container]
    while stack:
        top = stack[-1]
        if id(top) in path or id(top) in done:
            path.discard(id(top))
            done.add(id(stack.pop()))
            continue
        path.add(id(top))
        inside = [i for i in (top.values() if type(top) is dict else top) if type(i) in _CONTAINERS]
        if any(id(item) in path for item in inside):
            return True
        stack.extend(inside)
    return False


def _with_refs(value: Any, ids: dict[int, TaskId]) -> Any:
    """Return a copy of the container with each output replaced by a `Ref`."""
    if type(value) is Output:
        return Ref(ids[id(value)])
    if type(value) is dict:
        return {key: _with_refs(item, ids) for key, item in value.items()}
    if type(value) in _CONTAINERS:
        return type(value)(_with_refs(item, ids) for item in value)
    return value


def _wiring(call: Call, index: dict[TaskId, str]) -> str:
    """Encode a call's wiring in one line, with dots for constants."""
    refs, nested = call.refs, frozenset(call.nested)
    if not call.kwargs and not nested:
        parts = ["@" + index[refs[i]] if i in refs else "." for i in range(len(call.args))]
        return f"{call.task.name!r}({' '.join(parts)})"

    def shown(where: Where, value: Any) -> str:
        if where in refs:
            return "@" + index[refs[where]]
        return _shape(value, index) if where in nested else "."

    parts = [shown(i, value) for i, value in enumerate(call.args)]
    parts += [f"{name!r}={shown(name, value)}" for name, value in call.kwargs.items()]
    return f"{call.task.name!r}({' '.join(parts)})"


def _shape(value: Any, index: dict[TaskId, str]) -> str:
    """Encode a nested argument; a part without `Ref`s is a dot, like any constant."""
    if type(value) is Ref:
        return "@" + index[value.task]
    if type(value) not in _CONTAINERS:
        return "."
    inside = [_shape(item, index) for item in (value.values() if type(value) is dict else value)]
    if all(shape == "." for shape in inside):
        return "."
    if type(value) is dict:
        inside = [f"{_key(key)}:{shape}" for key, shape in zip(value, inside, strict=True)]
        return "{" + " ".join(inside) + "}"
    return f"[{' '.join(inside)}]" if type(value) is list else f"({' '.join(inside)})"


def _key(key: Any) -> str:
    """Encode a dict's key as text that is the same in every process."""
    if type(key) in _PLAIN:
        return repr(key)
    if type(key) is tuple:
        return f"({' '.join(map(_key, key))})"
    if type(key) is frozenset:
        return f"<{' '.join(sorted(map(_key, key)))}>"
    return type(key).__qualname__ + repr(_ADDRESS.sub("", repr(key)))
