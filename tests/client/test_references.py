"""The modules that pickles refer to are found without loading them."""

from __future__ import annotations

import pickle
import types
from fractions import Fraction
from pathlib import Path
from typing import Any

import cloudpickle
import numpy
import numpy as np
import pytest

from shoal.client.references import referenced_modules
from shoal.storage.codec import encode


def tops(*pickles: bytes) -> set[str]:
    return {name.partition(".")[0] for name in referenced_modules(pickles)}


def tops_of(value: Any) -> set[str]:
    return tops(cloudpickle.dumps(value, 5))


def with_alias() -> Any:
    return np.array(0)


def with_the_modules_own_name() -> Any:
    return numpy.array(types)


@pytest.mark.parametrize(
    "value",
    [np.array([1.5]), np.float64(1.5), np.sum, np.ndarray, {"x": [np.array(["a"], object)]}],
    ids=lambda value: type(value).__name__,
)
def test_values_refer_to_the_modules_of_their_classes(value: Any) -> None:
    assert "numpy" in tops_of(value)


@pytest.mark.parametrize("function", [with_alias, with_the_modules_own_name])
def test_functions_by_value_refer_to_the_modules_that_they_name(function: Any) -> None:
    by_value = types.FunctionType(function.__code__, function.__globals__ | {"__name__": "gone"})
    assert "numpy" in tops_of(by_value)


def test_text_is_no_reference() -> None:
    values = ["numpy", {"numpy": "types"}, ("numpy", "array"), b"numpy", ["numpy"] * 3]
    assert tops_of(values) == set()
    assert "numpy" not in tops_of([Path("numpy"), *values])


def test_nothing_is_loaded() -> None:
    class Dangerous:
        def __reduce__(self) -> Any:
            return exec, ("raise SystemExit",)

    assert tops_of([Dangerous(), Fraction(1, 2)]) == {"builtins", "fractions"}


def test_pickles_are_found_inside_pickles_and_blobs() -> None:
    inside = cloudpickle.dumps([cloudpickle.dumps(Fraction(1, 2)), 1], 5)
    assert tops(pickle.dumps([inside], 5)) == {"fractions"}
    blob = encode([np.ones(3), inside], bytes(32), "name")
    assert {"numpy", "fractions"} <= tops(bytes(blob[0]))


def test_bytes_that_only_look_like_a_pickle_are_harmless() -> None:
    assert tops(b"\x80\x05\x95" * 3, b"\x80\x05\x95\x03\0\0\0\0\0\0\0R.", b"") == set()


def test_long_pickles_are_read_in_part() -> None:
    long = [f"{number:1000}" for number in range(20_000)]
    assert tops(pickle.dumps([Fraction(1, 2), long, types.SimpleNamespace()], 5)) == {"fractions"}
    short = long[:1000]
    both = {"fractions", "types"}
    assert tops(pickle.dumps([Fraction(1, 2), short, types.SimpleNamespace()], 5)) == both
