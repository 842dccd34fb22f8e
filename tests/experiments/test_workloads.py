"""WUKONG's workloads as Dask graphs agree with numpy and scikit-learn."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import dask
import numpy as np
import pytest

import shoal
from shoal.dask import get
from shoal.errors import UsageError
from shoal.experiments.workloads.linear import gemm, random_matrix, svd1, svd2
from shoal.experiments.workloads.svc import fitted, generate_features, svc
from shoal.experiments.workloads.tree import tr


def computed(*collections: Any) -> Any:
    values = dask.compute(*collections, scheduler="sync")
    return values[0] if len(values) == 1 else values


def tasks(collection: Any) -> int:
    return len(dict(collection.__dask_graph__()))


def test_tr_adds_all_numbers_with_one_task_for_each_addition() -> None:
    assert computed(tr(33)) == sum(range(33))
    assert tasks(tr()) == 1023


def test_gemm_is_the_product_of_both_matrices() -> None:
    a, b = (computed(random_matrix(60, 60, (20, 20), seed=seed)) for seed in (3, 4))
    assert np.allclose(computed(gemm(60, 20, seed=3)), a @ b)
    assert not np.allclose(a, b)


def test_svd1_factors_multiply_to_the_tall_matrix() -> None:
    matrix = computed(random_matrix(600, 8, (100, 8), seed=1))
    u, s, v = computed(*svd1(600, 8, 100, seed=1))
    assert np.allclose(u * s @ v, matrix)
    assert np.allclose(s, np.linalg.svd(matrix, compute_uv=False))


def test_svd2_is_about_as_close_to_the_matrix_as_its_rank_allows() -> None:
    matrix = computed(random_matrix(120, 120, (40, 40), seed=1))
    u, s, v = computed(*svd2(120, 40, seed=1))
    exact = np.linalg.svd(matrix, compute_uv=False)
    assert len(s) == 5
    assert s[0] == pytest.approx(exact[0])
    nearest = np.sqrt((exact[5:] ** 2).sum())
    assert nearest <= np.linalg.norm(u * s @ v - matrix) < 1.05 * nearest


def test_svc_predicts_every_row_as_one_classifier_does() -> None:
    features = np.concatenate([generate_features(25, seed) for seed in range(8, 12)])
    expected = fitted(200, 7).predict(features)
    assert np.array_equal(computed(svc(100, 4, sample=200, seed=7)), expected)
    assert 0 < expected.sum() < 100


@pytest.mark.real
@pytest.mark.parametrize("planner", ["auto", "uniform", "wukong"])
def test_workers_compute_the_same_numbers_under_any_planner(planner: str) -> None:
    collections = (
        tr(33),
        gemm(60, 20),
        *svd1(600, 8, 100),
        *svd2(120, 40),
        svc(100, 4, sample=200),
    )
    # Few sandboxes, because each may have to load all packages.
    with shoal.options(planner=planner, progress=False, sandboxes=4):
        found = dask.compute(*collections, scheduler=get)
    for value, expected in zip(found, computed(*collections), strict=True):
        np.testing.assert_allclose(value, expected)


@pytest.mark.parametrize(
    ("build", "bad"),
    [
        (tr, {"numbers": 1}),
        (tr, {"seconds": -1}),
        (gemm, {"size": 0}),
        (svd1, {"columns": 0}),
        (svd2, {"rank": 0}),
        (svc, {"sample": 0}),
        (svc, {"rows": 101}),
    ],
)
def test_invalid_arguments_are_rejected(build: Any, bad: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=rf"{build.__name__}\({next(iter(bad))}="):
        build(**bad)


@pytest.mark.parametrize(
    ("workload", "package"), [("tree", "dask"), ("linear", "dask"), ("svc", "sklearn")]
)
def test_without_its_packages_the_error_names_the_extra(
    workload: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    for module in ("libraries", workload):
        name = f"shoal.experiments.workloads.{module}"
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(UsageError, match=rf"needs {package}.*pip install 'shoal\[experiments\]'"):
        importlib.import_module(f"shoal.experiments.workloads.{workload}")
