"""The plan cache keeps plans of repeated workflows, and says when to plan again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from planning_examples import Table, chain, conditions, fan, step, workflow

from shoal import PreLoadOptimization, Preview, Resources, Task, task
from shoal.metadata.predictions import DefaultCosts, LearntPredictions
from shoal.metadata.samples import About, Sample, Samples
from shoal.planning.base import Conditions
from shoal.planning.plan_cache import PlanCache, PlanName, key_of
from shoal.planning.spread import SpreadPlanner
from shoal.types import TaskId
from shoal.workflow import Output


def preview() -> Preview:
    under = conditions(Table())
    return Preview(SpreadPlanner().plan(workflow(step()), under), under)


def test_a_cached_plan_is_found() -> None:
    cache, kept = PlanCache(), preview()
    assert cache.find("key") is None
    name = cache.keep("key", kept)
    assert cache.find("key") == (kept, name)
    assert cache.named(name.number) == (kept, name)
    assert cache.find("other") is None


def test_a_new_plan_replaces_the_old_one_as_another_version() -> None:
    cache, kept = PlanCache(), preview()
    old = cache.keep("key", preview())
    new = cache.keep("key", kept)
    assert cache.find("key") == (kept, new)
    assert (new.number, new.version) == (old.number, old.version + 1)


def test_a_plan_is_due_after_twice_as_many_runs() -> None:
    cache = PlanCache()
    number = cache.keep("key", preview()).number
    due = []
    for run in range(1, 40):
        if cache.due(number):
            due.append(run)
            cache.keep("key", preview())
    assert due == [1, 2, 4, 8, 16, 32]


def test_what_is_learnt_updates_a_plan_unless_it_has_been_replaced() -> None:
    cache, told = PlanCache(), preview()
    old = cache.keep("key", preview())
    cache.update(old, lambda _: told)
    assert cache.find("key") == (told, old)
    new = PlanName(old.number, 2)
    cache.update(new, lambda _: told)
    cache.update(old, lambda _: preview())
    assert cache.find("key") == (told, new)


def test_a_plan_that_is_not_cached_is_neither_updated_nor_due() -> None:
    cache = PlanCache()
    cache.update(PlanName(1, 1), lambda _: pytest.fail("there is no such plan"))
    assert not cache.due(1)


def test_the_oldest_plan_is_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.planning.plan_cache._MOST", 2)
    cache = PlanCache()
    names = [cache.keep(key, preview()) for key in "abc"]
    assert cache.find("a") is None
    assert cache.named(names[0].number) is None
    assert cache.named(names[2].number) == cache.find("c")


def key(output: Output[Any], name: str = "name", nbytes: int = 0, *what: Any) -> Any:
    constants = {TaskId("step#0"): {TaskId("constant"): nbytes}} if nbytes else {}
    return key_of(workflow(output).named(name), constants, *what)


def test_the_same_workflow_has_the_same_key() -> None:
    assert key(chain(3)) == key(chain(3))
    assert hash(key(chain(3))) == hash(key(chain(3)))


def test_keys_depend_on_names_shapes_and_settings() -> None:
    same = key(chain(3), "name", 0, 4, 2048)
    assert key(chain(3), "name", 0, 4, 2048) == same
    assert key(chain(3), "other", 0, 4, 2048) != same
    assert key(chain(4), "name", 0, 4, 2048) != same
    assert key(fan(1), "name", 0, 4, 2048) == same
    assert key(chain(3), "name", 0, 8, 2048) != same


def test_keys_depend_on_the_approximate_size_of_constants() -> None:
    assert key(step(), nbytes=1000) == key(step(), nbytes=1010)
    assert key(step(), nbytes=1000) != key(step(), nbytes=3000)
    assert key(step()) != key(step(), nbytes=1000)


def test_keys_depend_on_the_approximate_size_of_small_constants() -> None:
    @task
    def simulate(n: Any, *, how: str = "") -> None: ...

    assert key(simulate(1000)) == key(simulate(1010))
    assert key(simulate(1000)) != key(simulate(10**6))
    assert key(simulate([0] * 10)) != key(simulate([0] * 100))
    assert key(simulate(1000, how="fast")) == key(simulate(1000, how="slow"))
    assert key(simulate(float("inf"))) == key(simulate(float("nan"))) == key(simulate(10**400))


def test_a_cached_plan_predicts_a_run_with_other_constants() -> None:
    """The plan of `simulate(600)` is used for `simulate(900)`, but not what it would take."""

    @task
    def simulate(n: int) -> None: ...

    cache, at_first = PlanCache(), workflow(simulate(600))
    sample = Sample("execute", simulate.key, 0, Resources(2048), 0, 6.0, 6.0, 0)
    runs = [
        Samples(
            at_first.fingerprint(),
            [sample._replace(seconds=n / 100, about=About((), 0, {"=0": float(n)}))],
        )
        for n in (600, 700, 800) * 2
    ]
    learnt = LearntPredictions(at_first, runs, DefaultCosts())
    under = Conditions(learnt, 2, Resources(2048))
    cache.keep("key", Preview(SpreadPlanner().plan(at_first, under), under))
    before = cache.again("key", at_first, {}, under.pool)
    later = cache.again("key", workflow(simulate(900)), {}, under.pool)
    assert before is not None
    assert later is not None
    assert before[0].predicted(1.0) == pytest.approx(6, rel=0.1)
    assert later[0].predicted(1.0) == pytest.approx(9, rel=0.1)


def test_a_constant_shared_by_several_tasks_counts_once() -> None:
    flow, sizes = workflow(chain(2)), {TaskId("constant"): 1000}
    once = key_of(flow, {TaskId("step#0"): sizes})
    assert key_of(flow, {TaskId("step#0"): sizes, TaskId("step#1"): sizes}) == once


@dataclass
class Unhashable:
    """A user's optimization, as a plain dataclass."""

    level: int = 1


def optional(**options: Any) -> Any:
    return key(Task(lambda: None, name="task", **options)())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({}, {"resources": Resources(4096)}),
        ({"resources": Resources(4096)}, {"resources": Resources(4096, 2)}),
        ({}, {"forced_optimizations": [PreLoadOptimization]}),
        (
            {"forced_optimizations": [PreLoadOptimization()]},
            {"forced_optimizations": [PreLoadOptimization(3)]},
        ),
        ({"forced_optimizations": [Unhashable(1)]}, {"forced_optimizations": [Unhashable(2)]}),
    ],
)
def test_keys_depend_on_the_options_of_tasks(one: Any, other: Any) -> None:
    assert optional(**one) == optional(**one)
    assert hash(optional(**one)) == hash(optional(**one))
    assert optional(**one) != optional(**other)
