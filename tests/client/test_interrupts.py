"""While a program waits for a run, signals that would kill it interrupt the wait instead."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from shoal.client.interrupts import interruptible


@pytest.fixture(autouse=True)
def _default() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


def test_a_waiting_program_exits_with_the_signals_code() -> None:
    with pytest.raises(SystemExit) as ended, interruptible(), interruptible():
        signal.raise_signal(signal.SIGTERM)
    assert ended.value.code == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_program_that_handles_a_signal_keeps_its_handler() -> None:
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    with interruptible():
        signal.raise_signal(signal.SIGTERM)
    assert told == [signal.SIGTERM]


def test_only_the_main_thread_changes_signal_handlers() -> None:
    found: list[object] = []

    def look() -> None:
        with interruptible():
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [signal.SIG_DFL]
