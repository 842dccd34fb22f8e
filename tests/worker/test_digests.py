"""Digests: equal content has equal digests in every process, other content has others."""

from __future__ import annotations

import collections
import functools
import importlib
import math
import os
import pickle
import re
import subprocess
import sys
import threading
import types
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.worker.digests import content_digest, function_digest

NAMES = {"one", "two", "three", "four", "five"}


class Color(Enum):
    RED = 1
    BLUE = 2


@dataclass
class Point:
    x: int
    y: Any = None


VALUES: list[Any] = [
    None, True, 1, 1.0, -0.0, math.inf, 1j, "1", b"1", 2**100, "ü\ud800",
    [], (), {}, set(), frozenset(), [1], (1,), {1}, {1: 2}, {2: 1}, [[1]], [(1,)], [1, "1"],
    ["a", ["b"]], [["a"], "b"], {"a": 1, "b": 2}, {"b": 2, "a": 1}, bytearray(b"1"),
    Color.RED, Color.BLUE, Color, Point(1), Point(1, [2]), Point, range(3), ..., len, math.sin,
    np.arange(6), np.arange(6).reshape(2, 3), np.arange(6.0), np.zeros(0), np.float64(3),
    np.array(["a", None], dtype=object), np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
    collections.OrderedDict(a=1), collections.Counter("abc"), functools.partial(math.pow, 2),
    NAMES, [NAMES, "x"], str.join, os.path.join,
]  # fmt: skip


def test_values_that_differ_have_different_digests() -> None:
    assert len({content_digest(value) for value in VALUES}) == len(VALUES)


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_copy_has_the_same_digest(value: Any) -> None:
    assert content_digest(cloudpickle.loads(cloudpickle.dumps(value))) == content_digest(value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner),
)


@given(JSON, JSON)
def test_digests_are_equal_exactly_if_the_reprs_are(one: Any, other: Any) -> None:
    assert content_digest(pickle.loads(pickle.dumps(one))) == content_digest(one)
    assert (content_digest(one) == content_digest(other)) == (repr(one) == repr(other))


def test_shared_and_equal_parts_are_the_same_content() -> None:
    shared = "".join(["a", "b"])
    assert content_digest([[shared], [shared]]) == content_digest([["ab"], ["".join("ab")]])


def test_the_digest_of_an_array_view_is_that_of_its_content() -> None:
    array = np.arange(20).reshape(4, 5)
    assert content_digest(array[::2, ::2]) == content_digest(array[::2, ::2].copy())
    assert content_digest(array.T) == content_digest(np.ascontiguousarray(array.T))


def test_a_value_that_contains_itself_has_a_digest() -> None:
    one: list[Any] = [1]
    one.append(one)
    other: list[Any] = [2]
    other.append(other)
    assert content_digest(one) != content_digest(other)


@pytest.mark.parametrize("value", [threading.Lock(), (n for n in [1]), sys._getframe()])
def test_an_unpicklable_value_has_no_digest(value: Any) -> None:
    with pytest.raises(TypeError):
        content_digest([value])


# Functions.


def made(source: str, **given: Any) -> Any:
    """Return the function `f` of a module with this source."""
    module = types.ModuleType("of_the_user")
    vars(module).update(given)
    exec(source, vars(module))
    return module.f


def test_a_functions_position_and_comments_do_not_matter() -> None:
    one = made("def f(x):\n    return x + 1")
    other = made("\n\n# why\ndef f(x):\n\n    # how\n    return x + 1")
    assert function_digest(one) == function_digest(other)


BASE = """
import math
K = [1]
def helper(x):
    return x + len(K)
class Kind:
    size = 3
    def method(self):
        return 1
def f(x, y=1, *, z=2):
    inner = [helper(n) for n in range(x)]
    return math.sin(x) + y * Kind.size + len(inner)
"""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("y=1", "y=2"),
        ("z=2", "z=3"),
        ("y=1", "q=1, y=1"),
        ("math.sin(x)", "math.cos(x)"),
        ("x + len(K)", "x - len(K)"),
        ("K = [1]", "K = [2]"),
        ("size = 3", "size = 4"),
        ("return 1", "return 2"),
        ("helper(n) for n", "helper(n + 1) for n"),
    ],
)
def test_change_of_what_a_function_does_changes_its_digest(before: str, after: str) -> None:
    assert BASE.count(before) == 1
    assert function_digest(made(BASE)) == function_digest(made(BASE))
    assert function_digest(made(BASE)) != function_digest(made(BASE.replace(before, after)))


def test_globals_that_a_function_does_not_name_do_not_matter() -> None:
    source = "def f(x):\n    return x.K"
    assert function_digest(made(source, K=1)) == function_digest(made(source, K=2))


def test_the_closure_counts() -> None:
    def adding(n: Any) -> Any:
        return lambda x: x + n

    assert function_digest(adding(1)) == function_digest(adding(1))
    assert function_digest(adding(1)) != function_digest(adding(2))
    assert function_digest(adding({"a", "b"})) == function_digest(adding({"b", "a"}))


def test_recursive_functions_have_digests() -> None:
    source = "def f(x):\n    return g(x) if x else f(1)\ndef g(x):\n    return f(x - 1)"
    changed = source.replace("x - 1", "x - 2")
    assert function_digest(made(source)) == function_digest(made(source))
    assert function_digest(made(source)) != function_digest(made(changed))


def test_only_what_a_function_uses_of_a_users_module_counts() -> None:
    source = "def f(x):\n    return m.one(x)"

    def module(one: str, two: str) -> types.ModuleType:
        found = types.ModuleType("m_of_the_user")
        exec(f"def one(x): return {one}\ndef two(x): return {two}", vars(found))
        return found

    digest = function_digest(made(source, m=module("1", "2")))
    assert digest == function_digest(made(source, m=module("1", "3")))
    assert digest != function_digest(made(source, m=module("2", "2")))


def package(body: str) -> types.ModuleType:
    """Create a user's package with a module `sub` that has a function `one`."""
    outer, inner = types.ModuleType("p_of_the_user"), types.ModuleType("p_of_the_user.sub")
    exec(f"def one(x): return {body}", vars(inner))
    vars(outer)["sub"], vars(inner)["outer"] = inner, outer
    return outer


@pytest.mark.parametrize(
    "source",
    [
        "def f(x):\n    return p.sub.one(x)",
        "def f(x):\n    return [p.sub.one(n) for n in range(x)]",
        "def f(x):\n    return map(lambda n: p.sub.one(n), range(x))",
    ],
)
def test_a_function_reached_through_modules_counts_under_any_name(source: str) -> None:
    digest = function_digest(made(source, p=package("x + 1")))
    assert digest == function_digest(made(source, p=package("x + 1")))
    assert digest != function_digest(made(source, p=package("x + 2")))


@pytest.mark.parametrize(
    "line",
    [
        "from own.part import one",
        "from own.part import one as two",
        "from own import part",
        "import own.part",
        "from .part import one",
        "from . import part",
    ],
)
def test_a_users_module_imported_inside_the_function_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    """It counts whether it was imported before or not, since a worker may be warm or cold."""
    used = {"one": "one(x)", "two": "two(x)", "part": "part.one(x)"}.get(line.split()[-1])
    source = f"def f(x):\n    {line}\n    return {used or 'own.part.one(x)'}"
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "__init__.py").write_text("")

    def digests(body: str) -> set[bytes]:
        (tmp_path / "own" / "part.py").write_text(f"def one(x):\n    return {body}\n")
        for name in ("own", "own.part"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        importlib.invalidate_caches()
        function = made(source, __package__="own")
        cold = function_digest(function)
        function(1)
        return {cold, function_digest(function)}

    assert len(digests("x + 1")) == 1
    assert digests("x + 1") == digests("x + 1")
    assert digests("x + 1").isdisjoint(digests("x + 2"))


def test_an_import_that_fails_inside_a_function_is_ignored() -> None:
    assert function_digest(made("def f(x):\n    import no_such_module_of_mine"))


CLASSES = """
import functools
def helper(x):
    return x + 1
class Base:
    def plain(self):
        return 2
class Kind(Base):
    def method(self):
        return super().plain() + helper(self.found)
    @functools.cached_property
    def found(self):
        return 3
    @staticmethod
    def still():
        return 4
    @property
    def read(self):
        return 5
    @read.setter
    def read(self, value):
        self.written = value + 6
def f(x):
    return Kind().method()
"""


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5, 6])
def test_the_whole_behaviour_of_a_class_counts(number: int) -> None:
    before = re.sub(rf"\b{number}\b", "9", CLASSES)
    assert before != CLASSES
    assert function_digest(made(CLASSES)) == function_digest(made(CLASSES))
    assert function_digest(made(CLASSES)) != function_digest(made(before))


@pytest.mark.real
def test_digests_are_the_same_in_every_process() -> None:
    program = """
import sys
sys.path[:0] = sys.argv[1:]
from test_digests import BASE, CLASSES, VALUES, made, content_digest, function_digest
for value in VALUES: print(content_digest(value).hex())
print(function_digest(made(BASE)).hex())
print(function_digest(made(CLASSES)).hex())
print(function_digest(made('def f(x): return x in {"p", "q", "r", "s", "t"}')).hex())
"""
    said = []
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", program, os.path.dirname(__file__)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        said.append(done.stdout.splitlines())
    assert len(said[0]) == len(VALUES) + 3
    assert said[0] == said[1]
