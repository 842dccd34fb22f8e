"""Signals that would end the process at once end who waits instead, and only then."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from shoal.interrupts import interruptible


@pytest.fixture(autouse=True)
def _default() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


def test_who_waits_is_ended_with_the_exit_code_of_the_signal() -> None:
    with pytest.raises(SystemExit) as ended, interruptible(), interruptible():
        signal.raise_signal(signal.SIGTERM)
    assert ended.value.code == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_program_that_handles_a_signal_goes_on_doing_so() -> None:
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    with interruptible():
        signal.raise_signal(signal.SIGTERM)
    assert told == [signal.SIGTERM]


def test_other_threads_change_nothing() -> None:
    found: list[object] = []

    def look() -> None:
        with interruptible():
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [signal.SIG_DFL]
