"""joblib's own tests of its backends on Shoal: `make conformance-joblib`.

1. If a test is parametrised with backends, and they include joblib's own for processes or all
   registered ones, Shoal's backend is added. Only the added cases run.
2. All tests share one session with real worker processes.
3. `joblib_allowed.toml` lists the tests that may fail, each with its reason. A listed test that
   passes counts as failed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

MODULE = "joblib.test.test_parallel"
OUTCOMES = ("passed", "failed", "allowed", "skipped")
_SECONDS = 120
"""The time limit of a test, in seconds."""
_LIKE: tuple[tuple[Any, Any], ...] = (("loky", "shoal"), (("loky", True), ("shoal", False)))
"""joblib's cases and their counterparts for Shoal. The second element of a pair says whether a new
call fails after an earlier one was aborted."""


class Conformance:
    """A pytest plugin that adds Shoal's backend to joblib's tests."""

    def __init__(self, one_in: int) -> None:
        import shoal.integrations.executor
        import shoal.joblib

        self._one_in = one_in
        self._backend = shoal.joblib.ShoalBackend
        self._counts: Counter[str] = Counter()
        self._calls = 0
        listed = Path(__file__).with_name("joblib_allowed.toml").read_text()
        self._allowed: dict[str, str] = tomllib.loads(listed)
        submit = shoal.integrations.executor.ShoalExecutor.submit

        def counted(*args: Any, **kwargs: Any) -> Any:
            self._calls += 1
            return submit(*args, **kwargs)

        shoal.integrations.executor.ShoalExecutor.submit = counted  # type: ignore[method-assign]

    @pytest.hookimpl(tryfirst=True)
    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Add Shoal's cases to a test."""
        for mark in metafunc.definition.iter_markers("parametrize"):
            cases = mark.args[1]
            if isinstance(cases, list):
                for theirs, ours in _LIKE:
                    if theirs in cases and ours not in cases:
                        cases.append(ours)

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Keep a sample of Shoal's cases, and mark those that may fail."""
        ours = [item for item in items if self._is_ours(item)]
        kept = [item for item in ours if crc32(item.name.encode()) % self._one_in == 0]
        config.hook.pytest_deselected(items=list(set(items) - set(kept)))
        items[:] = kept
        for item in items:
            reason = self._allowed.get(item.name) or self._allowed.get(item.name.partition("[")[0])
            if reason is not None:
                item.add_marker(pytest.mark.xfail(reason=reason, strict=True))

    def _is_ours(self, item: pytest.Item) -> bool:
        cases = getattr(item, "callspec", None)
        values = cases.params.values() if cases else ()
        return any(
            value == "shoal" or value is self._backend or isinstance(value, self._backend)
            for value in values
        )

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Any:
        """Count a test by its outcome."""
        report = yield
        if report.when == "call" or report.outcome != "passed":
            allowed = hasattr(report, "wasxfail") and report.outcome == "skipped"
            self._counts["allowed" if allowed else report.outcome] += 1
        return report

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print how many tests passed."""
        counts = ", ".join(f"{self._counts[outcome]} {outcome}" for outcome in OUTCOMES)
        terminalreporter.write_line(f"\n{MODULE}: {counts}")
        terminalreporter.write_line(f"{self._calls} calls were run on Shoal.")


def main() -> int:
    """Run the tests; return 0 if only allowed ones failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--one-in", type=int, default=1, help="run only one test in so many")
    parser.add_argument("-k", dest="only", default="", help="only tests that match, as pytest's")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="shoal-") as folder:
        os.environ.update(XDG_DATA_HOME=folder, SHOAL_IDLE_SECONDS="60", SHOAL_WORKERS="2")
        os.chdir(folder)
        Path("sitecustomize.py").write_text("import shoal.joblib\n")  # for scripts that tests run
        os.environ["PYTHONPATH"] = folder
        arguments = [
            *("-c", os.devnull, "--rootdir", folder, "-p", "no:cacheprovider", "-q", "--no-header"),
            *("-W", "ignore", "--tb=short", f"--timeout={_SECONDS}", "-k", given.only),
            *("--durations=5", "--pyargs", MODULE),
        ]
        return pytest.main(arguments, plugins=[Conformance(given.one_in)])


if __name__ == "__main__":
    sys.exit(main())
