"""joblib runs on Shoal under the name "shoal", once `shoal.joblib` has been imported."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import joblib
import numpy as np
import pytest
from executor_examples import add, divide, note_and_wait_for, wait_for
from joblib import Parallel, delayed

import shoal.joblib
from observing import TIMEOUT
from shoal.errors import SettingsError, UsageError
from shoal.session import Session
from shoal.workflow import task

pytestmark = pytest.mark.real


@pytest.fixture(autouse=True)
def on_shoal(session: Session) -> Iterator[None]:
    with joblib.parallel_config("shoal", session=session):
        yield


def test_calls_run_on_workers_in_order() -> None:
    assert Parallel()(delayed(add)(number, 1) for number in range(20)) == list(range(1, 21))
    assert os.getpid() not in Parallel()(delayed(os.getpid)() for _ in range(3))


def test_all_workers_are_used_by_default(tmp_path: Path) -> None:
    assert joblib.effective_n_jobs() == 2
    names = (("one", "other"), ("other", "one"))
    assert all(Parallel()(delayed(note_and_wait_for)(str(tmp_path), *pair) for pair in names))


def test_results_can_be_taken_as_they_complete(tmp_path: Path) -> None:
    calls = [("gate", 60), ("", 1)]
    found = Parallel(return_as="generator_unordered")(
        delayed(wait_for)(str(tmp_path), *call) for call in calls
    )
    assert next(found)
    (tmp_path / "gate").touch()
    assert list(found) == [True]


def test_an_exception_is_raised_and_the_backend_can_be_used_again(tmp_path: Path) -> None:
    """The running calls are ended, which would have waited for a long time."""
    with Parallel() as parallel:
        with pytest.raises(ZeroDivisionError):
            parallel(
                delayed(call)(*given)
                for call, given in ((wait_for, (str(tmp_path), "never")), (divide, (1, 0)))
            )
        assert parallel(delayed(add)(number) for number in range(3)) == [0, 1, 2]


def test_a_timeout_is_honoured(tmp_path: Path) -> None:
    with pytest.raises(joblib.parallel.TimeoutError):
        Parallel(timeout=0.2)(delayed(wait_for)(str(tmp_path), "never") for _ in range(2))


def test_large_arrays_are_passed_and_returned() -> None:
    array = np.arange(300_000.0)
    for factor, found in enumerate(Parallel()(delayed(np.multiply)(array, n) for n in range(3))):
        assert np.array_equal(found, array * factor)


def nested(backend: str | None) -> list[int]:
    return Parallel(n_jobs=2, backend=backend)(delayed(add)(number) for number in range(3))


@pytest.mark.parametrize("backend", [None, "shoal"])
def test_calls_can_be_nested(backend: str | None) -> None:
    assert Parallel()(delayed(nested)(backend) for _ in range(2)) == [[0, 1, 2]] * 2


def test_within_a_task_the_backend_runs_calls_sequentially(
    session: Session,
) -> None:
    assert session.compute(task(nested)("shoal")) == [[0, 1, 2]]


def test_unknown_options_are_rejected(session: Session) -> None:
    with pytest.raises(UsageError, match="no initializer"):
        Parallel(initializer=add)(delayed(add)(1) for _ in range(2))
    with (
        joblib.parallel_config("shoal", session=session, memory=1),
        pytest.raises(SettingsError, match="did you mean 'memory_mb'"),
    ):
        Parallel(n_jobs=2)(delayed(add)(1) for _ in range(2))


def test_without_joblib_the_error_names_the_extra() -> None:
    code = "import sys; sys.modules['joblib'] = None; import shoal.joblib"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    assert "pip install 'shoal[joblib]'" in done.stderr


def test_the_backend_is_public() -> None:
    assert joblib.parallel.BACKENDS["shoal"] is shoal.joblib.ShoalBackend
