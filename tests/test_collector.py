"""The garbage collector is off while somebody works without it, and then as it was before."""

from __future__ import annotations

import gc
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from shoal.collector import uncollected


def test_it_is_off_meanwhile() -> None:
    assert gc.isenabled()
    with uncollected():
        with uncollected():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_it_stays_off_if_it_was() -> None:
    gc.disable()
    try:
        with uncollected():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_it_is_on_again_after_work_that_failed() -> None:
    with pytest.raises(ZeroDivisionError), uncollected():
        _ = 1 / 0
    assert gc.isenabled()


def test_it_is_on_again_after_many_threads() -> None:
    def work(_: int) -> None:
        with uncollected():
            assert not gc.isenabled()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(3) as threads:
            list(threads.map(work, range(3000)))
    finally:
        sys.setswitchinterval(interval)
    assert gc.isenabled()
