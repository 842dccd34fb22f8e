"""A sample of Dask's own tests passes on Shoal; `make conformance-dask` runs them all."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.real

CONFORMANCE = Path(__file__).with_name("dask_conformance.py")
MODULES = (
    "tests.test_delayed",
    "array.tests.test_rechunk",
    "bag.tests.test_bag",
    "dataframe.io.tests.test_csv",
)


def test_a_sample_of_dasks_own_tests_passes() -> None:
    done = subprocess.run(
        [sys.executable, CONFORMANCE, "--one-in", "20", *MODULES],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr
    assert "graphs were run on Shoal" in done.stdout
