"""Convert a Dask graph to outputs.

1. Workers run only tasks. An alias is replaced by its target, data nodes become constants of the
   tasks that use them, and tasks that only assemble a result run on the client.
2. A task is named after its key's prefix, and its inputs are in the order of its arguments, so that
   history recognizes the same computation of the same program, whatever its hashes.
3. A chain of tasks becomes one task, unless an output in between is needed elsewhere.
4. No function recurses over the graph, only over the arguments of one task.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dask._task_spec import (
    Alias,
    DataNode,
    Dict,
    GraphNode,
    List,
    TaskRef,
    Tuple,
    _execute_subgraph,
    _identity_cast,
)
from dask._task_spec import Task as DaskTask
from dask.utils import key_split

from shoal.errors import UsageError
from shoal.integrations.dask.steps import apply, follow
from shoal.types import Resources
from shoal.workflow import Output, Task, program, with_key

Key = Hashable
Nodes = Mapping[Key, Any]
"""A Dask graph: a node for each key."""

_FINAL = ("finalize", "compositefinalize", "repartitiontofewer")
"""The prefixes of tasks that only assemble a result."""
_LONGEST = 60
"""The longest task name, in characters."""
_SEQUENCES = {List: list, Tuple: tuple}


class _Complex(Exception):
    """An argument that only Dask can evaluate."""


@dataclass(frozen=True, slots=True)
class Demands:
    """The options that a task gets from `dask.annotate`."""

    resources: Resources | None = None
    retries: int = 0


_NONE = Demands()


class Conversion:
    """The outputs that some keys of a graph depend on, and how to assemble their result."""

    def __init__(
        self,
        nodes: Nodes,
        wanted: Iterable[Key],
        annotations: Mapping[str, Mapping[Key, Any]] | None = None,
        *,
        each: bool = False,
    ) -> None:
        """Convert a graph.

        Args:
            nodes: The graph, with all tasks converted from Dask's legacy tuples.
            wanted: The requested keys.
            annotations: Dask's annotations, by kind and key.
            each: Whether to keep every Dask task separate, without fusing chains.
        """
        self._nodes = nodes
        self._annotations = annotations or {}
        self._orders: dict[int, list[Key]] = {}
        self._tasks: dict[tuple[Any, ...], Task[..., Any]] = {}
        self._program = program()
        self._outputs: dict[Key, Output[Any]] = {}
        self._wanted = {key: self._resolved(key, None) for key in wanted}
        self._inputs: dict[Key, list[Key]] = {}
        """The keys that each task takes, under the names that it uses."""
        targets = dict.fromkeys(self._wanted.values())
        order = list(self._ordered(targets))
        users = Counter(source for key in order for source in self._sources(key))
        self._final = {key for key in targets if self._is_final(key) and not users[key]}
        sinks = dict.fromkeys(key for key in targets if self._is_task(key))
        for key in self._final:
            del sinks[key]
            sinks |= dict.fromkeys(self._sources(key))
        for end, chain in self._chains(order, users, sinks, each):
            self._outputs[end] = self._output(chain)
        self.sinks: dict[Key, Output[Any]] = {key: self._outputs[key] for key in sinks}
        """The outputs to compute, by key."""

    @property
    def outputs(self) -> Mapping[Key, Output[Any]]:
        """The output of each task that workers run; for a chain, of its last task."""
        return self._outputs

    def result(self, values: Mapping[Key, Any]) -> dict[Key, Any]:
        """Return the value of each requested key, given those of the sinks."""
        known = self.finished(values)
        return {key: self.held(target, known) for key, target in self._wanted.items()}

    def finished(self, values: Mapping[Key, Any]) -> dict[Key, Any]:
        """Run the tasks that are left to the client, and return all values."""
        known = dict(values)
        for key in self._final:
            inputs = {name: self.held(name, values) for name in self._inputs[key]}
            known[key] = self._nodes[key](inputs)
        return known

    def held(self, name: Key, values: Mapping[Key, Any]) -> Any:
        """Return the value of a key, given those of tasks."""
        key = self._resolved(name, None)
        return values[key] if self._is_task(key) else self._nodes[key].value

    def _resolved(self, key: Key, user: Key | None) -> Key:
        """Return the key of the task or data that a key refers to, following aliases."""
        passed = {key}
        while True:
            node = self._nodes.get(key)
            if node is None:
                raise _missing(key, user)
            if type(node) is not Alias:
                return key
            key, user = node.target, key
            if key in passed:
                raise RuntimeError(f"Cycle detected in Dask: {key!r} is an alias of itself")
            passed.add(key)

    def _is_task(self, key: Key) -> bool:
        return type(self._nodes[key]) is not DataNode

    def _is_final(self, key: Key) -> bool:
        node = self._nodes[key]
        named = key_split(key).startswith(_FINAL)
        return named and type(node) is DaskTask and node.func is not _execute_subgraph

    def _sources(self, key: Key) -> list[Key]:
        """Return the tasks whose outputs a task takes."""
        found = dict.fromkeys([self._resolved(name, key) for name in self._inputs.get(key, ())])
        return [source for source in found if self._is_task(source)]

    def _ordered(self, targets: Iterable[Key]) -> Iterator[Key]:
        """Yield every task that is needed, each after its sources."""
        open_: set[Key] = set()
        done: set[Key] = set()
        stack = [key for key in reversed(list(targets)) if self._is_task(key)]
        while stack:
            key = stack[-1]
            if key in done:
                stack.pop()
            elif key in open_:
                stack.pop()
                done.add(key)
                yield key
            else:
                open_.add(key)
                self._inputs[key] = self._names(self._nodes[key])
                for source in reversed(self._sources(key)):
                    if source in open_ and source not in done:
                        raise RuntimeError(f"Cycle detected in Dask: {source!r} needs itself")
                    if source not in done:
                        stack.append(source)

    def _names(self, node: Any) -> list[Key]:
        """Return the keys that a task refers to, in the order of its arguments."""
        if not node.dependencies:
            return []
        if len(node.dependencies) == 1:
            return list(node.dependencies)
        named = dict.fromkeys(_named_in(self._canonical(node)))
        if named.keys() != node.dependencies:
            return sorted(node.dependencies, key=str)
        return list(named)

    def _canonical(self, node: Any) -> Sequence[Any]:
        """Return a node's arguments; those of fused tasks in order of use, not of their hash."""
        if type(node) is not DaskTask:
            return (node,)
        if node.func is not _execute_subgraph or len(node.args) < 5:
            return (*node.args, *node.kwargs.values())
        inner, end, names, *values = node.args
        order = self._orders.get(id(inner))
        if order is None:
            order = self._orders[id(inner)] = list(dict.fromkeys(_named_in(inner.values())))
        given = dict(zip(names, values, strict=True))
        names = tuple(name for name in order if name in given)
        if len(names) != len(given):
            return tuple(node.args)
        return (inner, end, names, *(given[name] for name in names))

    def _chains(
        self, order: Iterable[Key], users: Counter[Key], sinks: Mapping[Key, Any], each: bool
    ) -> Iterable[tuple[Key, list[Key]]]:
        """Return chains of tasks to fuse, by their last task, each after its sources."""
        chains: dict[Key, list[Key]] = {}
        for key in order:
            if key in self._final:
                continue
            sources = self._sources(key)
            before = sources[0] if len(sources) == 1 else None
            fits = before in chains and before not in sinks and users[before] == 1 and not each
            if before is not None and fits and self._demands(before) == self._demands(key):
                chains[key] = chains.pop(before)
                chains[key].append(key)
            else:
                chains[key] = [key]
        return chains.items()

    def _demands(self, key: Key) -> Demands:
        return _demands(key, self._annotations) if self._annotations else _NONE

    def _output(self, chain: list[Key]) -> Output[Any]:
        demands = self._demands(chain[-1])
        if len(chain) == 1:
            try:
                args, kwargs = self._arguments(self._nodes[chain[0]])
                return self._task(_name(chain), apply, demands)(*args, **kwargs)
            except _Complex:
                pass
        steps: list[tuple[Key, Any]] = []
        names: dict[Key, None] = {}
        for number, key in enumerate(chain):
            before = None
            for name in self._inputs[key]:
                if number and self._resolved(name, key) == chain[number - 1]:
                    before = name
                else:
                    names[name] = None
            steps.append((before, self._nodes[key]))
        values = [self._value(name) for name in names]
        return self._task(_name(chain), follow, demands)(tuple(steps), tuple(names), *values)

    def _task(self, name: str, function: Callable[..., Any], demands: Demands) -> Task[..., Any]:
        kind = (name, function, demands)
        task = self._tasks.get(kind)
        if task is None:
            resources, retries = demands.resources, demands.retries
            task = Task(function, name=name, resources=resources, retries=retries)
            task = with_key(f"{self._program}:{name}", task)
            self._tasks[kind] = task
        return task

    def _value(self, name: Key) -> Any:
        key = self._resolved(name, None)
        return self._outputs[key] if self._is_task(key) else self._nodes[key].value

    def _arguments(self, node: Any) -> tuple[Sequence[Any], dict[str, Any]]:
        """Return a task's function and arguments, if evaluating them doesn't need Dask."""
        if type(node) is not DaskTask:
            raise _Complex
        given = node.args
        if node.func is _execute_subgraph:
            given = self._canonical(node)
        args = [node.func, *[self._argument(arg) for arg in given]]
        return args, {name: self._argument(arg) for name, arg in node.kwargs.items()}

    def _argument(self, arg: Any) -> Any:
        kind = type(arg)
        if kind is TaskRef:
            return self._value(arg.key)
        if not isinstance(arg, GraphNode):
            return arg
        if kind is Alias:
            return self._value(arg.target)
        if kind is DataNode:
            return arg.value
        made = _SEQUENCES.get(kind)
        if kind is DaskTask and arg.func is _identity_cast:
            made = arg.kwargs["typ"]
        if made is list or made is tuple:
            return made([self._argument(item) for item in arg.args])
        if kind is Dict:
            return {key: self._argument(arg[key]) for key in arg}
        raise _Complex


def _missing(key: Key, user: Key | None) -> Exception:
    """Return the error that Dask's own schedulers raise."""
    if user is None:
        return KeyError(key)
    return ValueError(f"Missing dependency {key} for dependents {{{user!r}}}")


def _named_in(args: Iterable[Any]) -> Iterator[Key]:
    """Yield the keys that arguments refer to, in order."""
    for arg in args:
        kind = type(arg)
        if kind is TaskRef:
            yield arg.key
        elif kind is Alias:
            yield arg.target
        elif isinstance(arg, DaskTask):
            yield from _named_in(arg.args)
            yield from _named_in(arg.kwargs.values())


def _name(chain: Sequence[Key]) -> str:
    """Return a task's name, made of its keys' prefixes."""
    name = "-".join(dict.fromkeys(map(key_split, chain)))
    if len(name) > _LONGEST:
        name = name[: _LONGEST - 1] + "…"
    if name.isprintable() and "#" not in name and name:
        return name
    return "".join(c if c.isprintable() and c != "#" else "_" for c in name) or "task"


def _demands(key: Key, annotations: Mapping[str, Mapping[Key, Any]]) -> Demands:
    resources = annotations.get("resources", {}).get(key)
    retries = annotations.get("retries", {}).get(key) or 0
    return Demands(_resources(resources), retries) if resources or retries else _NONE


def _resources(asked: Any) -> Resources | None:
    if asked is None or isinstance(asked, Resources):
        return asked
    known = {name: asked[name] for name in ("memory_mb", "cpus") if name in asked}
    if "MEMORY" in asked:
        known["memory_mb"] = -(-int(asked["MEMORY"]) // 2**20)
    unknown = asked.keys() - {"memory_mb", "cpus", "MEMORY"}
    if unknown or "memory_mb" not in known:
        raise UsageError(
            f"dask.annotate(resources={asked!r}): must have memory_mb (or MEMORY, in bytes), and "
            "may have cpus."
        )
    return Resources(**known)
