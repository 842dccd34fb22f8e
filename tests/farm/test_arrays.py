"""Workflows and farms that need numpy say so if it isn't installed; others don't need it."""

import importlib
import subprocess
import sys

import pytest

from shoal.errors import UsageError


@pytest.mark.parametrize(
    "name", ["experiments.matrix_multiplication", "experiments.image_transformation",
             "farm.workloads"]
)  # fmt: skip
def test_without_numpy_the_error_names_the_extra(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    for module in ("farm.arrays", name):
        monkeypatch.delitem(sys.modules, f"shoal.{module}", raising=False)
    expected = r"needs numpy: pip install 'shoal\[experiments\]', or 'shoal\[farm\]' for farms"
    with pytest.raises(UsageError, match=expected):
        importlib.import_module(f"shoal.{name}")


@pytest.mark.parametrize("workflow", ["text_analysis", "tree_reduction", "word_count"])
def test_without_numpy_everything_else_works(workflow: str) -> None:
    code = f"import sys; sys.modules['numpy'] = None; import shoal.experiments.{workflow}"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
