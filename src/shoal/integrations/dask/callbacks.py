"""Dask's callbacks, told of a run that no scheduler of Dask's carries out.

1. Nothing is fused while somebody listens: each task of Dask's is told of.
2. While a run is under way the client knows how many tasks are executed, but not which: it says
   that they are the first ones in Dask's order. The workers' own records, which come at the end,
   give `Profiler` the times and workers that were.
3. Who wants each task's value (`CacheProfiler`, `dask.cache.Cache`) gets it: then every output
   comes back to the client, and all is told at the end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dask._task_spec import convert_legacy_graph
from dask.callbacks import unpack_callbacks
from dask.diagnostics.profile import Profiler
from dask.local import finish_task, start_state_from_dask
from dask.order import order

from shoal.engine import submit
from shoal.errors import RunTimeout
from shoal.integrations.dask.graph import Conversion, Key, Nodes
from shoal.run import Run
from shoal.settings import in_force
from shoal.workflow import Output, needed

_GLANCE = 0.1
"""Seconds between two looks at the progress."""


def observed(
    nodes: Nodes,
    wanted: Sequence[Key],
    annotations: Mapping[str, Mapping[Key, Any]],
    callbacks: Sequence[Any],
    options: Mapping[str, Any],
) -> dict[Key, Any]:
    """Run a graph as `get` does, and tell callbacks of it."""
    told = _Told(callbacks)
    failed = True
    try:
        for callback in callbacks:
            told.begin(callback, nodes)
        told.look_at(convert_legacy_graph(nodes), wanted)
        conversion = Conversion(told.nodes, wanted, annotations, each=True)
        outputs = conversion.outputs if told.wants_values else conversion.sinks
        values: dict[Key, Any] = {}
        if outputs:
            quiet = {"progress": False, **in_force(options)}  # somebody else shows it
            run: Run = submit(*outputs.values(), **quiet)
            values = dict(zip(outputs, _awaited(run, told), strict=True))
            told.correct(run, needed(*outputs.values()), conversion.outputs)
        values = conversion.finished(values)
        result = {key: conversion.held(key, values) for key in wanted}
        told.advance(None, lambda key: conversion.held(key, values))
        failed = False
    finally:
        told.finish(failed)
    return result


def _awaited(run: Run, told: _Told) -> list[Any]:
    """The values of a run; callbacks are told of its progress meanwhile."""
    try:
        while True:
            try:
                return run.values(_GLANCE)
            except RunTimeout:
                if not told.wants_values:
                    told.advance(run.status().executed, lambda key: None)
    except BaseException:
        run.cancel()
        raise


class _Told:
    """What callbacks have been told of a run."""

    def __init__(self, callbacks: Sequence[Any]) -> None:
        self.nodes: Nodes = {}
        self._callbacks = callbacks
        self._begun: list[Any] = []
        _, _, self._pretask, self._posttask, _ = unpack_callbacks(callbacks)
        profilers = [getattr(told, "__self__", None) for told in self._posttask]
        self._profilers = [found for found in profilers if isinstance(found, Profiler)]
        self.wants_values = len(self._profilers) < len(self._posttask)
        """Whether somebody is to be told of each task's value."""
        self._state: dict[str, Any] = {}
        self._ahead: list[Key] = []
        """Tasks that are still to be told of, the next one last."""
        self._announced: set[Key] = set()
        self._records: dict[Key, tuple[float, float, str]] = {}

    def begin(self, callback: Any, nodes: Nodes) -> None:
        """Tell a callback of the graph, which it may change."""
        if callback[0]:
            callback[0](nodes)
        self._begun.append(callback)

    def look_at(self, nodes: Nodes, wanted: Sequence[Key]) -> None:
        """Have Dask's own notion of a run that begins."""
        self.nodes = nodes
        self._wanted = set(wanted)
        self._rank = order(nodes)
        self._state = start_state_from_dask(nodes, keys=self._wanted, sortkey=self._rank.get)
        state = self._state
        tasks = [*state["ready"], *state["waiting"]]
        self._ahead = sorted(tasks, key=self._rank.__getitem__, reverse=True)
        for callback in self._callbacks:
            if callback[1]:
                callback[1](nodes, state)
        for key in reversed(state["ready"]):
            self._announce(key)

    def _announce(self, key: Key) -> None:
        if key not in self._announced:
            self._announced.add(key)
            for pretask in self._pretask:
                pretask(key, self.nodes, self._state)

    def advance(self, executed: int | None, value_of: Callable[[Key], Any]) -> None:
        """So many tasks are executed; None: all."""
        state = self._state
        while self._ahead and (executed is None or len(state["finished"]) < executed):
            key = self._ahead.pop()
            self._announce(key)
            state["ready"].remove(key)
            state["running"].add(key)
            value = state["cache"][key] = value_of(key) if self.wants_values else None
            finish_task(self.nodes, key, state, self._wanted, self._rank.get)
            worker = self._records[key][2] if key in self._records else None
            for posttask in self._posttask:
                posttask(key, value, self.nodes, state, worker)

    def correct(
        self, run: Run, ran: Sequence[Output[Any]], outputs: Mapping[Key, Output[Any]]
    ) -> None:
        """Take the times of tasks from the workers' records."""
        offset = run.started + time.perf_counter() - time.time()
        ids = dict(zip(map(id, ran), run.workflow.calls, strict=True))
        spans = {span.task: span for span in run.timeline.of_kind("execute")}
        for key, output in outputs.items():
            span = spans.get(ids[id(output)])
            if span is not None:
                self._records[key] = (span.start + offset, span.end + offset, span.worker)

    def finish(self, failed: bool) -> None:
        """The run has ended."""
        for profiler in self._profilers:
            for key, (start, end, worker) in self._records.items():
                profiler._results[key] = (key, self.nodes[key], start, end, worker)
        for callback in self._begun:
            if callback[4]:
                callback[4](self.nodes, self._state, failed)
