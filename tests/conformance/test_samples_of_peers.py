"""Samples of Dask's and joblib's own tests pass on Shoal.

`make conformance-dask` and `make conformance-joblib` run them all.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from shoal import system

pytestmark = pytest.mark.real

DASK = (
    "dask_conformance.py",
    *("--one-in", "20" if system.PRELOADS else "80"),  # otherwise each sandbox would load Dask
    *("tests.test_delayed", "array.tests.test_rechunk"),
    *("bag.tests.test_bag", "dataframe.io.tests.test_csv"),
)
JOBLIB = ("joblib_conformance.py", "--one-in", "24")


@pytest.mark.parametrize(
    ("command", "ran"), [(DASK, "graphs"), (JOBLIB, "calls")], ids=["dask", "joblib"]
)
def test_a_sample_of_its_own_tests_passes(command: tuple[str, ...], ran: str) -> None:
    script, *arguments = command
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name(script), *arguments],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr
    assert f"{ran} were run on Shoal" in done.stdout
