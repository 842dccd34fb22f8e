"""A plan book keeps plans for what is run again, and says when to make them anew."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from planning_examples import Table, chain, conditions, fan, step, workflow

from shoal import PreLoadOptimization, Preview, Resources, Task
from shoal.planning.book import PlanBook, key_of
from shoal.planning.spread import SpreadPlanner
from shoal.types import TaskId
from shoal.workflow import Output


def preview() -> Preview:
    under = conditions(Table())
    return Preview(SpreadPlanner().plan(workflow(step()), under), under)


def test_a_plan_that_is_kept_is_found() -> None:
    book, kept = PlanBook(), preview()
    assert book.find("key") is None
    book.keep("key", kept)
    assert book.find("key") is kept
    assert book.find("other") is None


def test_a_plan_that_is_made_anew_replaces_the_one_before() -> None:
    book, kept = PlanBook(), preview()
    book.keep("key", preview())
    book.keep("key", kept)
    assert book.find("key") is kept


def test_a_plan_is_due_when_it_has_been_run_twice_as_often() -> None:
    book = PlanBook()
    book.keep("key", preview())
    due = []
    for run in range(1, 40):
        if book.due("key"):
            due.append(run)
            book.keep("key", preview())
    assert due == [1, 2, 4, 8, 16, 32]


def test_a_plan_is_told_anew_as_often_as_that_takes_little_of_the_time() -> None:
    now, told = 0.0, []
    book = PlanBook(lambda: now)
    book.keep("key", preview())

    def tell(known: Preview) -> Preview:
        nonlocal now
        told.append(now)
        now += 1
        return known

    while now < 50:
        book.inform("key", tell)
        now += 1
    assert told == [0.0, 21.0, 42.0]


def test_what_is_told_anew_replaces_what_was_told_before() -> None:
    book, told = PlanBook(), preview()
    book.keep("key", preview())
    book.inform("key", lambda _: told)
    assert book.find("key") is told
    book.inform("other", lambda _: pytest.fail("nothing is kept for it"))
    assert book.find("other") is None


def test_what_is_not_kept_is_never_due() -> None:
    assert not PlanBook().due("key")


def key(output: Output[Any], name: str = "name", nbytes: int = 0, *what: Any) -> Any:
    constants = {TaskId("step#0"): {TaskId("constant"): nbytes}} if nbytes else {}
    return key_of(workflow(output).named(name), constants, *what)


def test_the_same_workflow_has_the_same_key() -> None:
    assert key(chain(3)) == key(chain(3))
    assert hash(key(chain(3))) == hash(key(chain(3)))


def test_keys_tell_names_shapes_and_settings_apart() -> None:
    same = key(chain(3), "name", 0, 4, 2048)
    assert key(chain(3), "name", 0, 4, 2048) == same
    assert key(chain(3), "other", 0, 4, 2048) != same
    assert key(chain(4), "name", 0, 4, 2048) != same
    assert key(fan(1), "name", 0, 4, 2048) == same
    assert key(chain(3), "name", 0, 8, 2048) != same


def test_keys_tell_about_how_large_constants_are() -> None:
    assert key(step(), nbytes=1000) == key(step(), nbytes=1010)
    assert key(step(), nbytes=1000) != key(step(), nbytes=3000)
    assert key(step()) != key(step(), nbytes=1000)


def test_a_constant_that_several_tasks_take_counts_once() -> None:
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
def test_keys_tell_apart_what_is_asked_of_tasks(one: Any, other: Any) -> None:
    assert optional(**one) == optional(**one)
    assert hash(optional(**one)) == hash(optional(**one))
    assert optional(**one) != optional(**other)
