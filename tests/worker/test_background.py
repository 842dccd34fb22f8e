"""A worker's background thread runs when it is woken and when a timer is due."""

from __future__ import annotations

from queue import SimpleQueue

import pytest

from shoal.worker.background import Background

SECONDS = 30.0
"""How long to wait for something that should happen at once."""


def unexpected(error: BaseException) -> None:
    raise error


def test_a_woken_thread_does_its_work() -> None:
    works: SimpleQueue[bool] = SimpleQueue()
    background = Background(works.put, unexpected)
    background.start()
    background.wake()
    while not works.get(timeout=SECONDS):
        pass
    background.stop()


def test_an_idle_thread_checks_for_work_by_itself() -> None:
    works: SimpleQueue[bool] = SimpleQueue()
    background = Background(works.put, unexpected)
    background.start()
    assert works.get(timeout=SECONDS) is False
    background.stop()


def test_timers_are_called_in_the_order_in_which_they_are_due() -> None:
    calls: SimpleQueue[str] = SimpleQueue()
    background = Background(lambda _: None, unexpected)
    for seconds, name in ((0.02, "late"), (0.0, "first"), (0.0, "second")):
        background.after(seconds, lambda name=name: calls.put(name))  # type: ignore[misc]
    background.start()
    assert [calls.get(timeout=SECONDS) for _ in range(3)] == ["first", "second", "late"]
    background.stop()


def test_stopped_thread_calls_no_timer() -> None:
    calls: list[str] = []
    background = Background(lambda _: None, unexpected)
    background.start()
    background.stop()
    background.after(0.0, lambda: calls.append("called"))
    background.stop()
    assert not calls
    background.call_due()
    assert calls == ["called"]


def test_error_is_reported_and_ends_the_thread() -> None:
    errors: SimpleQueue[BaseException] = SimpleQueue()

    def fail(_: bool) -> None:
        raise ValueError("broken")

    background = Background(fail, errors.put)
    background.start()
    background.wake()
    error = errors.get(timeout=SECONDS)
    background.stop()
    with pytest.raises(ValueError, match="broken"):
        raise error
