"""Dask's own tests on Shoal, whichever scheduler they name: `make conformance-dask`.

1. All of Dask's schedulers are replaced before a test module is imported, in every module that
   has imported one, and so is the function that runs a graph on a user's pool.
2. All tests share one session with real worker processes. Its runs aren't recorded, because
   learning from thousands of small graphs would take long. Sandboxes see each other's files, since
   Dask's shuffle on disk needs a disk that all workers share.
3. `dask_allowed.toml` lists the tests that may fail, each with its reason. A listed test that
   passes counts as failed, unless its reason starts with `sometimes`.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import tomllib
from collections import Counter
from pathlib import Path
from types import FunctionType
from typing import Any
from zlib import crc32

import pytest

MODULES = (
    "tests.test_delayed",
    "tests.test_base",
    "array.tests.test_linalg",
    "array.tests.test_rechunk",
    "array.tests.test_overlap",
    "array.tests.test_reductions",
    "array.tests.test_gufunc",
    "bag.tests.test_bag",
    "bag.tests.test_text",
    "dataframe.tests.test_groupby",
    "dataframe.tests.test_shuffle",
    "dataframe.tests.test_dataframe",
    "dataframe.io.tests.test_csv",
)
OUTCOMES = ("passed", "failed", "allowed", "xfailed", "skipped")
"""`xfailed` tests are Dask's own known failures, `allowed` ones are in our list."""
_UNWANTED = "not slow and not network and not gpu"
_SECONDS = 120
"""The time limit of a test, in seconds."""


class Conformance:
    """A pytest plugin that replaces Dask's schedulers by Shoal."""

    def __init__(self, one_in: int) -> None:
        self._one_in = one_in
        self._counts: dict[str, Counter[str]] = {}
        self._runs = 0
        listed = tomllib.loads(Path(__file__).with_name("dask_allowed.toml").read_text())
        self._allowed: dict[str, str] = {
            f"dask.{module}::{test}": reason
            for module, tests in listed.items()
            for test, reason in tests.items()
        }
        self._replace_schedulers()

    def get(self, dsk: Any, keys: Any, **kwargs: Any) -> Any:
        """Replace every scheduler."""
        import shoal.dask

        self._runs += 1
        return shoal.dask.get(dsk, keys, **kwargs)

    def get_async(self, submit: Any, workers: int, dsk: Any, keys: Any, **kwargs: Any) -> Any:
        """Replace the function that runs graphs on a user's pool."""
        return self.get(dsk, keys, num_workers=workers, **kwargs)

    def _replace_schedulers(self) -> None:
        import dask
        import dask.base
        import dask.local

        import shoal.dask

        def get(dsk: Any, keys: Any, **kwargs: Any) -> Any:
            return self.get(dsk, keys, **kwargs)

        named = dask.base.named_schedulers
        theirs = {*named.values(), dask.get} - {shoal.dask.get}
        named.update(dict.fromkeys(named, get))
        dask.local.get_async = self.get_async
        for module in [m for name, m in sys.modules.items() if name.partition(".")[0] == "dask"]:
            for name, value in list(vars(module).items()):
                if isinstance(value, FunctionType) and value in theirs:
                    setattr(module, name, get)
                elif getattr(value, "__dask_scheduler__", None) in theirs:
                    value.__dask_scheduler__ = staticmethod(get)

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Take a sample, and mark tests that may fail."""
        kept = [item for item in items if crc32(_id(item).encode()) % self._one_in == 0]
        config.hook.pytest_deselected(items=list(set(items) - set(kept)))
        items[:] = kept
        for item in items:
            test = _id(item)
            reason = self._allowed.get(test) or self._allowed.get(test.partition("[")[0])
            if reason is not None:
                strict = not reason.startswith("sometimes")
                item.add_marker(pytest.mark.xfail(reason=f"allowed: {reason}", strict=strict))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Any:
        """Count a test by its outcome."""
        report = yield
        if report.when == "call" or report.outcome != "passed":
            outcome = report.outcome
            if hasattr(report, "wasxfail") and outcome == "skipped":
                outcome = "allowed" if report.wasxfail.startswith("allowed: ") else "xfailed"
            module = _id(item).partition("::")[0]
            self._counts.setdefault(module, Counter())[outcome] += 1
        return report

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print how many tests of each module passed."""
        line = terminalreporter.write_line
        total = sum(self._counts.values(), Counter())
        width = max(map(len, self._counts), default=0)
        line(f"\n{'':{width}} " + "".join(f"{outcome:>9}" for outcome in OUTCOMES))
        for module, counts in {**self._counts, "all": total}.items():
            line(f"{module:{width}} " + "".join(f"{counts[outcome]:9}" for outcome in OUTCOMES))
        line(f"{self._runs} graphs were run on Shoal.")


def _id(item: pytest.Item) -> str:
    module = item.getparent(pytest.Module)
    return f"{module.obj.__name__ if module else ''}::{item.name}"


def main() -> int:
    """Run the tests; return 0 if only allowed ones failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--one-in", type=int, default=1, help="run only one test in so many")
    parser.add_argument("modules", nargs="*", default=MODULES, help="such as tests.test_delayed")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="shoal-") as folder:
        os.environ.update(
            XDG_DATA_HOME=folder,
            SHOAL_HISTORY="false",
            SHOAL_IDLE_SECONDS="60",
            SHOAL_ISOLATION="false",
            SHOAL_WORKERS="2",
        )
        os.chdir(folder)  # some tests write to the working folder
        arguments = [
            *("-c", os.devnull, "--rootdir", folder, "-p", "no:cacheprovider", "-q", "--no-header"),
            *("-m", _UNWANTED, "-W", "ignore", "--tb=short", f"--timeout={_SECONDS}", "--pyargs"),
            *(f"dask.{module}" for module in given.modules),
        ]
        return pytest.main(arguments, plugins=[Conformance(given.one_in)])


if __name__ == "__main__":
    sys.exit(main())
