"""Every example runs unchanged and prints what it promises."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.real

EXAMPLES = Path(__file__).parents[2] / "examples"
SHOWN = {
    "quickstart.py": ["square", "285"],
    "tree_reduction.py": ["523776", "1,023 tasks"],
    "planning.py": [
        "predicted from ",
        "runs, made in ",
        "clean#7 runs on w",
        "cold starts",
        "no plan was found that meets the deadline of 0.001 s",
        "w1 plan",
        "w1 run",
    ],
    "custom_planner.py": ["by by-name", "1 of 3000 MB", "21253400", "total#0 ran on worker-total"],
    "custom_optimization.py": [
        "It pre-warms 2 sandboxes for other tasks.",
        "reactions  OneAtATime",
        "140",
        "at most 1 part at once on a worker",
    ],
    "caching.py": [
        "7837 primes below 80000: 0 hits, 9 misses",
        "7837 primes below 80000: 9 hits, 0 misses",
        "9592 primes below 100000: 8 hits, 3 misses",
    ],
    "executor.py": [
        "303 primes below 2000",
        "3 to the 20 is 3486784401",
        "failed: invalid literal for int() with base 10: 'many'",
        "return len(str(int(text)))",
    ],
    "resuming.py": ["failed: ZeroDivisionError", "average: 2.25", "resumed run: average#0"],
    "dask_arrays.py": [
        "sum: 999999000000",
        "groups: {0: 135, 1: 145, 2: 155}",
        "failed: invalid literal",
    ],
    "image_farm.py": ["512 x 512: thumbnail of ", "2048 x 2048: ", "8 images, at most "],
    "failures.py": ["part 0, part 1, part 2, part 3", "exceeded the memory limit of "],
}


def test_every_example_is_run_here() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == SHOWN.keys()


@pytest.mark.parametrize("name", SHOWN)
def test_each_example_prints_what_it_promises(name: str) -> None:
    if name.startswith("dask"):
        pytest.importorskip("dask.dataframe")
    done = subprocess.run(
        [sys.executable, EXAMPLES / name], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr == ""
    assert done.returncode == 0
    for text in SHOWN[name]:
        assert text in done.stdout
