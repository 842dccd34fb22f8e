"""The garbage collector is off inside the block, and as before after it."""

from __future__ import annotations

import gc
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from shoal.gc_pause import gc_paused


def test_the_collector_is_off_inside_the_block() -> None:
    assert gc.isenabled()
    with gc_paused():
        with gc_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_the_collector_stays_off_if_it_was_off() -> None:
    gc.disable()
    try:
        with gc_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_the_collector_is_on_again_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), gc_paused():
        _ = 1 / 0
    assert gc.isenabled()


def test_the_collector_is_on_again_after_many_threads() -> None:
    def work(_: int) -> None:
        with gc_paused():
            assert not gc.isenabled()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(3) as threads:
            list(threads.map(work, range(3000)))
    finally:
        sys.setswitchinterval(interval)
    assert gc.isenabled()
