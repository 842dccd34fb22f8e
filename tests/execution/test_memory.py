"""A worker's memory: which outputs it holds, and for which tasks."""

import pytest
from execution_examples import a, b, c, check_memory, d

from shoal.execution.effects import Effect, Fetch, Forget, Save
from shoal.execution.memory import INLINE_NBYTES, Memory

LARGE = INLINE_NBYTES + 1


def forgotten(memory: Memory) -> list[Effect]:
    """Return what a memory drops after an event, and check its invariants."""
    effects: list[Effect] = []
    memory.forget(effects)
    check_memory(memory)
    return effects


def test_output_is_dropped_after_its_last_use() -> None:
    memory = Memory({a: 2})
    memory.add(a, 10)
    memory.used(a)
    assert forgotten(memory) == []
    memory.used(a)
    assert forgotten(memory) == [Forget((a,))]
    assert memory.held == set()


def test_output_that_nobody_uses_is_dropped_at_once() -> None:
    memory = Memory()
    memory.add(a, 10)
    assert forgotten(memory) == [Forget((a,))]


def test_an_output_that_gets_a_new_use_within_the_event_stays() -> None:
    memory = Memory({a: 1})
    memory.add(a, 10)
    memory.used(a)
    memory.use(a)
    assert forgotten(memory) == []
    assert memory.held == {a}


def test_an_output_that_never_arrived_is_not_dropped() -> None:
    memory = Memory({a: 1})
    memory.used(a)
    assert forgotten(memory) == []


def test_several_uses_can_end_together() -> None:
    memory = Memory({a: 3})
    memory.add(a, 10)
    memory.used(a, 3)
    assert forgotten(memory) == [Forget((a,))]


@pytest.mark.parametrize(("nbytes", "small"), [(INLINE_NBYTES, True), (LARGE, False)])
def test_output_up_to_the_limit_is_small(nbytes: int, small: bool) -> None:
    memory = Memory({a: 1})
    memory.add(a, nbytes)
    assert memory.small(a) is small
    assert memory.size(a) == nbytes


def test_an_output_from_a_message_is_small_unless_it_is_saved() -> None:
    memory = Memory({a: 1, b: 1})
    memory.receive((a, b), saved={b})
    assert memory.small(a)
    assert not memory.small(b)
    assert memory.saved == {b}


def test_output_of_unknown_size_is_not_small() -> None:
    memory = Memory()
    assert not memory.small(a)
    assert memory.size(a) == 0
    assert memory.sizes((a, b), unknown=7) == 14


def test_inputs_that_are_in_memory_are_not_fetched() -> None:
    memory = Memory({a: 1})
    memory.add(a, 10)
    effects: list[Effect] = []
    assert memory.gather(c, (a,), effects)
    assert effects == []


def test_output_is_fetched_once_for_all_tasks_that_wait_for_it() -> None:
    memory = Memory({a: 2, b: 1})
    effects: list[Effect] = []
    assert not memory.gather(c, (a,), effects)
    assert not memory.gather(d, (a, b), effects)
    assert effects == [Fetch((a,)), Fetch((b,))]
    assert memory.fetched(a) == [c]
    check_memory(memory)
    assert memory.fetched(b) == [d]
    assert memory.saved == {a, b}
    assert memory.missing == {}


def test_a_task_continues_with_an_output_made_here_while_it_is_fetched() -> None:
    memory = Memory({a: 1})
    memory.gather(c, (a,), [])
    assert memory.made(a, 10) == [c]
    assert memory.fetching == {a: []}
    assert memory.fetched(a) == []


def test_a_task_that_stops_gathering_is_not_notified_of_inputs() -> None:
    memory = Memory({a: 2})
    memory.gather(c, (a,), [])
    memory.gather(d, (a,), [])
    assert memory.stop_gathering(c)
    assert not memory.stop_gathering(c)
    assert memory.fetched(a) == [d]


def test_output_is_saved_once_and_stays_until_then() -> None:
    memory = Memory({a: 1})
    memory.add(a, LARGE)
    effects: list[Effect] = []
    memory.save(a, b, effects)
    memory.save(a, c, effects)
    assert effects == [Save(a)]
    memory.used(a)
    assert forgotten(memory) == []
    assert memory.finish_saving(a) == [b, c]
    assert forgotten(memory) == [Forget((a,))]


def test_save_all_saves_only_outputs_that_are_needed_and_nowhere_else() -> None:
    memory = Memory({a: 1, b: 1, c: 1, d: 1})
    for output in (a, b, c):
        memory.add(output, 10)
    memory.add_saved(d)
    memory.save(a, None, [])
    memory.used(b)
    effects: list[Effect] = []
    memory.save_all((a, b, c, d), effects)
    assert effects == [Save(c)]


def test_an_unpicklable_output_is_not_saved_again() -> None:
    memory = Memory({a: 1})
    memory.add(a, 10)
    memory.save(a, None, [])
    memory.give_up_saving(a)
    effects: list[Effect] = []
    memory.save_all((a,), effects)
    assert effects == []
    assert forgotten(memory) == []
    assert memory.held == {a}
