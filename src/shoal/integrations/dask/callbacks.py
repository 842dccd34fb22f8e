"""Call Dask's callbacks for a run that no Dask scheduler executes.

1. With callbacks, tasks are not fused, so that each Dask task is reported.
2. During a run the client knows how many tasks have finished, but not which ones; it reports the
   first ones in Dask's order. The workers' records, which arrive at the end, give `Profiler` the
   actual times and workers.
3. For callbacks that need each task's value (`CacheProfiler`, `dask.cache.Cache`), every output is
   returned to the client, and all tasks are reported at the end.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dask._task_spec import convert_legacy_graph
from dask.callbacks import unpack_callbacks
from dask.diagnostics.profile import Profiler
from dask.local import finish_task, start_state_from_dask
from dask.order import order

from shoal.client.run import Run
from shoal.engine import submit
from shoal.errors import RunTimeout
from shoal.integrations.dask.graph import Conversion, Key, Nodes
from shoal.settings import in_force
from shoal.workflow import Output, needed

_GLANCE = 0.1
"""Seconds between two checks of the progress."""


def observed(
    nodes: Nodes,
    wanted: Sequence[Key],
    annotations: Mapping[str, Mapping[Key, Any]],
    callbacks: Sequence[Any],
    options: Mapping[str, Any],
) -> dict[Key, Any]:
    """Run a graph as `get` does, and call the callbacks."""
    reporter = _Reporter(callbacks)
    failed = True
    try:
        for callback in callbacks:
            reporter.begin(callback, nodes)
        reporter.look_at(convert_legacy_graph(nodes), wanted)
        conversion = Conversion(reporter.nodes, wanted, annotations, each=True)
        outputs = conversion.outputs if reporter.wants_values else conversion.sinks
        values: dict[Key, Any] = {}
        if outputs:
            quiet = {"progress": False, **in_force(options)}  # a callback may show its own
            run: Run = submit(*outputs.values(), **quiet)
            values = dict(zip(outputs, _wait(run, reporter), strict=True))
            reporter.correct(run, needed(*outputs.values()), conversion.outputs)
        values = conversion.finished(values)
        result = {key: conversion.held(key, values) for key in wanted}
        reporter.advance(None, lambda key: conversion.held(key, values))
        failed = False
    finally:
        reporter.finish(failed)
    return result


def _wait(run: Run, reporter: _Reporter) -> list[Any]:
    """Wait for the values of a run, and report its progress to callbacks meanwhile."""
    with contextlib.ExitStack() as undo:
        undo.callback(run.cancel)
        while True:
            try:
                values = run.values(_GLANCE)
                undo.pop_all()
                return values
            except RunTimeout:
                if not reporter.wants_values:
                    reporter.advance(run.status().executed, lambda key: None)


class _Reporter:
    """Reports a run to callbacks, with the state that Dask's schedulers keep."""

    def __init__(self, callbacks: Sequence[Any]) -> None:
        self.nodes: Nodes = {}
        self._callbacks = callbacks
        self._begun: list[Any] = []
        _, _, self._pretask, self._posttask, _ = unpack_callbacks(callbacks)
        profilers = [getattr(callback, "__self__", None) for callback in self._posttask]
        self._profilers = [found for found in profilers if isinstance(found, Profiler)]
        self.wants_values = len(self._profilers) < len(self._posttask)
        """Whether a callback needs each task's value."""
        self._state: dict[str, Any] = {}
        self._ahead: list[Key] = []
        """The tasks that are not reported yet, the next one last."""
        self._announced: set[Key] = set()
        self._records: dict[Key, tuple[float, float, str]] = {}

    def begin(self, callback: Any, nodes: Nodes) -> None:
        """Pass the graph to a callback, which may change it."""
        start, *_ = callback
        if start:
            start(nodes)
        self._begun.append(callback)

    def look_at(self, nodes: Nodes, wanted: Sequence[Key]) -> None:
        """Create Dask's scheduler state and report that the run starts."""
        self.nodes = nodes
        self._wanted = set(wanted)
        self._rank = order(nodes)
        self._state = start_state_from_dask(nodes, keys=self._wanted, sortkey=self._rank.get)
        state = self._state
        tasks = [*state["ready"], *state["waiting"]]
        self._ahead = sorted(tasks, key=self._rank.__getitem__, reverse=True)
        for _, start_state, *_ in self._callbacks:
            if start_state:
                start_state(nodes, state)
        for key in reversed(state["ready"]):
            self._announce(key)

    def _announce(self, key: Key) -> None:
        if key not in self._announced:
            self._announced.add(key)
            for pretask in self._pretask:
                pretask(key, self.nodes, self._state)

    def advance(self, executed: int | None, value_of: Callable[[Key], Any]) -> None:
        """Report tasks as finished until `executed` are; None reports all."""
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
        offset = run.started + time.perf_counter() - run.clock.now()
        ids = dict(zip(map(id, ran), run.workflow.calls, strict=True))
        spans = {span.task: span for span in run.timeline.of_kind("execute")}
        for key, output in outputs.items():
            span = spans.get(ids[id(output)])
            if span is not None:
                self._records[key] = (span.start + offset, span.end + offset, span.worker)

    def finish(self, failed: bool) -> None:
        """Report the end of the run."""
        for profiler in self._profilers:
            for key, (start, end, worker) in self._records.items():
                profiler._results[key] = (key, self.nodes[key], start, end, worker)
        for *_, finish in self._begun:
            if finish:
                finish(self.nodes, self._state, failed)
