"""Which modules and packages a workflow needs, from pickles and files."""

from __future__ import annotations

import importlib
import importlib.util
import pickle
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

from shoal.client import project as projects
from shoal.client.project import Import, Projects, imports_in, loaded_project
from shoal.errors import CodeTooLarge, UsageError

Files = Callable[[dict[str, str]], Path]


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Files]:
    """Writes files into a folder that modules are imported from."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(tmp_path))

    def written(files: dict[str, str]) -> Path:
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        importlib.invalidate_caches()
        return tmp_path

    yield written
    for name in set(sys.modules) - before:
        del sys.modules[name]


def names(pickles: list[bytes], **options: Any) -> set[str]:
    """What travels."""
    return set(Projects().of(pickles, **options).names)


# Import statements.


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import a", [Import("a", (), True)]),
        ("import a.b as c, d  # why", [Import("a.b", (), True), Import("d", (), True)]),
        ("from a import b", [Import("a", ("b",), True)]),
        ("from a.b import (c as d,\n    e,)\n", [Import("a.b", ("c", "e"), True)]),
        ("from . import a", [Import(".", ("a",), True)]),
        ("from ..a import b", [Import("..a", ("b",), True)]),
        ("    import a; b()", [Import("a", (), False)]),
        ("try:\n\tfrom a import *", [Import("a", ("*",), False)]),
        ("important = 1\nfromage = 2\nx = 'import a'", []),
        ('"""Words.\n\nimport data from a file\n"""', []),
        ("# import a", []),
    ],
)
def test_import_statements_are_found_in_a_text(source: str, expected: list[Import]) -> None:
    assert imports_in(source.encode()) == expected


# What travels.


def test_a_package_travels_as_a_whole_with_its_data(written: Files) -> None:
    written(
        {
            "proj/__init__.py": "",
            "proj/inner/tool.py": "def f(): pass",
            "proj/other.py": "",
            "proj/data.txt": "x",
            "proj/.hidden": "x",
            "proj/.git/config": "x",
            "proj/__pycache__/other.cpython-311.pyc": "x",
            "proj/env/pyvenv.cfg": "x",
            "proj/env/lib.py": "x",
            "beside.py": "",
        }
    )
    tool = importlib.import_module("proj.inner.tool")
    assert names([cloudpickle.dumps(tool.f)]) == {
        *("proj/__init__.py", "proj/inner/tool.py", "proj/other.py", "proj/data.txt")
    }


def test_modules_travel_that_modules_import_even_if_they_are_not_loaded(written: Files) -> None:
    written(
        {
            "first.py": "import second, json, numpy\n\ndef f():\n    from third import x\n",
            "second.py": "",
            "third.py": "import first, fourth.part\n",
            "fourth/__init__.py": "",
            "fourth/part.py": "",
            "fifth.py": "",
        }
    )
    first = importlib.import_module("first")
    assert names([pickle.dumps(first.f)]) == {
        *("first.py", "second.py", "third.py", "fourth/__init__.py", "fourth/part.py")
    }


def test_modules_travel_that_are_named_without_a_pickle(written: Files) -> None:
    written({"named.py": "", "lazy.py": ""})
    namespace: dict[str, Any] = {}
    exec("def f():\n    import lazy\n", namespace)
    assert names([], modules=["named"], functions=[namespace["f"]]) == {"named.py", "lazy.py"}


def test_a_folder_without_an_init_travels_if_it_is_loaded(written: Files) -> None:
    written({"spaced/tool.py": "def f(): pass", "data/x.csv": "", "uses.py": "import data\n"})
    tool, uses = importlib.import_module("spaced.tool"), importlib.import_module("uses")
    assert names([pickle.dumps(tool.f)]) == {"spaced/tool.py"}
    del sys.modules["data"]
    assert names([], modules=[uses.__name__]) == {"uses.py"}


def test_nothing_travels_of_python_shoal_and_installed_packages() -> None:
    value = [np.float64(1), types.SimpleNamespace(), Import("a", (), True), pytest.raises]
    assert names([cloudpickle.dumps(value)]) == set()


def test_a_folder_into_which_packages_are_installed_does_not_travel(written: Files) -> None:
    written({"libs/thing.py": "def f(): pass", "libs/thing-1.0.dist-info/METADATA": "Name: thing"})
    sys.path.insert(0, str(written({}) / "libs"))
    thing = importlib.import_module("thing")
    sys.path.pop(0)
    found = Projects().of([pickle.dumps(thing.f)])
    assert not found.names
    assert found.installed == {"thing"}


def test_what_is_pickled_by_value_does_not_travel_as_a_file(written: Files) -> None:
    written({"byvalue.py": "import helping\n\ndef f():\n    return helping.x\n", "helping.py": ""})
    module = importlib.import_module("byvalue")
    cloudpickle.register_pickle_by_value(module)
    try:
        assert names([cloudpickle.dumps(module.f)]) == {"helping.py"}
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def test_a_module_travels_by_its_name_whatever_its_file_is_called(written: Files) -> None:
    path = written({"file-name.py": "def f(): pass"}) / "file-name.py"
    spec = importlib.util.spec_from_file_location("modname", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["modname"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert Projects().of([pickle.dumps(module.f)]).names == {"modname.py": str(path)}


def test_everything_that_is_loaded_travels_on_request(written: Files) -> None:
    written({"unnamed.py": ""})
    importlib.import_module("unnamed")
    assert "unnamed.py" in names([], everything=True)
    assert "unnamed.py" not in names([])
    assert {"shoal", "pytest", "json", "__main__"}.isdisjoint(loaded_project())


def test_what_a_script_imports_anywhere_travels_with_its_functions(
    written: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = "def helps():\n    import lazy\n\ndef f():\n    helps()\n"
    folder = written({"script.py": script, "lazy.py": ""})
    main = types.ModuleType("__main__")
    main.__file__ = str(folder / "script.py")
    exec(script, vars(main))
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert names([cloudpickle.dumps(vars(main)["f"])]) == {"lazy.py"}
    assert names([b""]) == set()


def test_a_package_that_is_installed_in_editable_form_travels_with_its_version(
    written: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = "site-packages/editable-1.5.dist-info"
    folder = written(
        {
            "src/editable/__init__.py": "",
            f"{record}/METADATA": "Metadata-Version: 2.1\nName: editable\nVersion: 1.5\n",
            f"{record}/RECORD": "editable-1.5.dist-info/METADATA,,\n__editable__.pth,,\n",
        }
    )
    monkeypatch.syspath_prepend(str(folder / "site-packages"))
    monkeypatch.syspath_prepend(str(folder / "src"))
    importlib.import_module("editable")
    found = names([], modules=["editable"])
    assert found == {"editable/__init__.py", "editable-1.5.dist-info/METADATA"}


@pytest.mark.parametrize("pattern", ["proj/data", "*.csv", "data", "proj/d*"])
def test_patterns_leave_files_and_folders_out(written: Files, pattern: str) -> None:
    written({"proj/__init__.py": "", "proj/data/x.csv": "", "proj/kept.txt": ""})
    found = Projects([pattern]).of([], ["proj"])
    assert set(found.names) == {"proj/__init__.py", "proj/kept.txt"}


def test_compiled_modules_are_noticed(written: Files) -> None:
    folder = written({"proj/__init__.py": ""})
    assert not Projects().of([], ["proj"]).compiled
    (folder / f"proj/fast{projects._COMPILED[0]}").write_bytes(b"")
    assert Projects().of([], ["proj"]).compiled


def test_large_data_files_stay_and_large_modules_travel(
    written: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(projects, "MAX_FILE_NBYTES", 10)
    folder = written({"proj/__init__.py": "", "proj/a.bin": "x" * 11, "proj/b.py": "#" * 11})
    found = Projects().of([], ["proj"])
    assert set(found.names) == {"proj/__init__.py", "proj/b.py"}
    assert found.large == (str(folder / "proj/a.bin"),)


def test_the_largest_parts_of_a_project_that_is_too_large_are_named(
    written: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(projects, "MAX_NBYTES", 100)
    written(
        {
            "proj/__init__.py": "",
            "proj/data/a": "x" * 60,
            "proj/data/b": "x" * 30,
            "proj/c.py": "#" * 20,
        }
    )
    with pytest.raises(CodeTooLarge) as refused:
        Projects().of([], ["proj"])
    assert refused.value.nbytes == 110
    assert refused.value.largest == (("proj/data", 90), ("proj", 20))


def test_a_file_that_can_not_be_read_is_named(written: Files) -> None:
    folder = written({"proj/__init__.py": ""})
    (folder / "proj/link.py").symlink_to("nowhere")
    assert names([], modules=["proj"]) == {"proj/__init__.py"}
    with pytest.raises(UsageError, match="exclude_files"):
        projects.read_file(str(folder / "proj/link.py"))


# Installed packages.


def test_packages_count_that_modules_import_whenever_they_are_imported(written: Files) -> None:
    written(
        {
            "first.py": "import second\nfrom proj import inner\n\ndef f():\n    import msgspec\n",
            "second.py": "try:\n    import hypothesis\nexcept ImportError:\n    pass\n",
            "proj/__init__.py": "import rich\n",
            "proj/inner.py": "from . import deep\n",
            "proj/deep.py": "import numpy.linalg\n",
            "proj/unused.py": "import cloudpickle\n",
        }
    )
    first = importlib.import_module("first")
    importlib.import_module("proj.unused")
    assert Projects().of([pickle.dumps(first.f)]).installed == {"numpy", "rich"}


def test_a_changed_file_is_read_again(written: Files) -> None:
    folder = written({"first.py": "", "second.py": ""})
    importlib.import_module("first")
    found = Projects()
    assert set(found.of([], ["first"]).names) == {"first.py"}
    (folder / "first.py").write_text("import second\n")
    assert set(found.of([], ["first"]).names) == {"first.py", "second.py"}
