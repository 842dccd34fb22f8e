"""The user's modules reach workers that don't see the client's files."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway_without_shared_files import gateway_without_shared_files

pytestmark = pytest.mark.real

PROJECT = {
    "shapes/__init__.py": "",
    "shapes/model.py": """
        from dataclasses import dataclass

        @dataclass
        class Square:
            side: int
    """,
    "shapes/area.py": """
        import os
        from importlib.resources import files
        from pathlib import Path
        from shoal import task
        from . import names
        from .model import Square
        import helper

        @task
        def area(square):
            return helper.times(square.side, square.side)

        @task
        def larger(square):
            return Square(square.side + 1)

        @task
        def texts():
            beside = Path(__file__).with_name("unit.txt").read_text()
            return names.NAME, files("shapes").joinpath("unit.txt").read_text(), beside

        @task
        def sees(folder):
            return os.path.exists(os.path.join(folder, "helper.py"))
    """,
    "shapes/names.py": "NAME = 'area'\n",
    "shapes/unit.txt": "metres",
    "helper.py": "def times(a, b):\n    return a * b\n",
    "lazily.py": "VALUE = 'imported when it ran'\n",
    "values.py": """
        from shoal import task

        @task
        def named():
            return __name__, "values.py" in __import__("os").listdir(__import__("sys").path[0])
    """,
    "broken.py": """
        import os
        from shoal import task

        if "AT_CLIENT" not in os.environ:
            raise RuntimeError("it can't start here")

        @task
        def never():
            return 1
    """,
}


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, str]]]:
    """The folder of a project, and the settings of a gateway that can't see it."""
    project, folder = tmp_path_factory.mktemp("project"), tmp_path_factory.mktemp("elsewhere")
    with gateway_without_shared_files(folder, project) as settings:
        yield project, settings


@pytest.fixture
def project(elsewhere: tuple[Path, dict[str, str]]) -> Path:
    """The folder of the project, as it was at first."""
    for name, text in PROJECT.items():
        path = elsewhere[0] / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return elsewhere[0]


def answer(elsewhere: tuple[Path, dict[str, str]], program: str, **variables: str) -> str:
    """What a program prints that is run in the project's folder."""
    (elsewhere[0] / "main.py").write_text(textwrap.dedent(program))
    done = subprocess.run(
        [sys.executable, "-W", "error", "main.py"],
        cwd=elsewhere[0],
        env=dict(os.environ) | elsewhere[1] | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.returncode, done.stderr
    return done.stdout.strip() + done.stderr.strip()


def test_a_package_with_relative_imports_and_data_runs_where_it_can_not_be_seen(
    project: Path, elsewhere: tuple[Path, dict[str, str]]
) -> None:
    program = f"""
        from shapes.area import area, larger, sees, texts
        from shapes.model import Square

        print(sees({str(project)!r}).compute(), texts().compute(), area(Square(3)).compute())
        made = larger(Square(3)).compute()
        print(made, type(made) is Square, area(larger(Square(3))).compute())
    """
    assert answer(elsewhere, program) == (
        "False ('area', 'metres', 'metres') 9\nSquare(side=4) True 16"
    )


def test_functions_of_a_script_find_the_modules_that_they_import_when_they_run(
    project: Path, elsewhere: tuple[Path, dict[str, str]]
) -> None:
    program = """
        import helper
        from shoal import task

        @task
        def tripled(x):
            import lazily
            return helper.times(3, x), lazily.VALUE

        print(tripled(2).compute(planner="wukong"))
    """
    assert answer(elsewhere, program) == "(6, 'imported when it ran')"


def test_a_changed_file_is_seen_by_the_next_run_and_by_a_fresh_process(
    project: Path, elsewhere: tuple[Path, dict[str, str]]
) -> None:
    program = """
        import importlib, os, sys
        from pathlib import Path
        import helper
        from shapes.area import area
        from shapes.model import Square

        print(area(Square(3)).compute())
        Path("helper.py").write_text("def times(a, b):\\n    return 100\\n")
        importlib.reload(helper)
        print(area(Square(3)).compute())
    """
    assert answer(elsewhere, program) == "9\n100"
    again = """
        from shapes.area import area
        from shapes.model import Square
        print(area(Square(3)).compute())
    """
    assert answer(elsewhere, again) == "100"
    (project / "helper.py").write_text("def times(a, b):\n    return 200\n")
    assert answer(elsewhere, again) == "200"


def test_the_same_content_travels_once(
    project: Path, elsewhere: tuple[Path, dict[str, str]]
) -> None:
    program = """
        import os
        from shoal import Session
        from shoal.client.remote_code import RemoteCode
        from shoal.storage.code import CodeServer
        from shapes.area import area
        from shapes.model import Square

        sent = []
        keep = CodeServer.keep
        CodeServer.keep = lambda *args: (sent.append(args[1]), keep(*args))
        with Session() as session:
            for _ in range(3):
                session.compute(area(Square(2)))
        print(len(sent))
    """
    (project / "helper.py").write_text("def times(a, b):\n    return a * b  # a new content\n")
    assert answer(elsewhere, program) == "1"
    assert answer(elsewhere, program) == "0"


def test_a_module_that_is_registered_by_value_is_not_sent_as_a_file(
    project: Path, elsewhere: tuple[Path, dict[str, str]]
) -> None:
    program = """
        import cloudpickle
        import values

        cloudpickle.register_pickle_by_value(values)
        print(values.named().compute())
    """
    assert answer(elsewhere, program) == "('values', False)"


def test_an_error_during_an_import_names_task_module_and_machine(
    project: Path, elsewhere: tuple[Path, dict[str, str]]
) -> None:
    program = """
        from broken import never
        from shoal.errors import TaskError

        try:
            never().compute()
        except TaskError as error:
            print(error)
    """
    told = answer(elsewhere, program, AT_CLIENT="1")
    assert "task 'never#0' failed on worker" in told
    assert "RuntimeError: it can't start here" in told
    assert f"imported module 'broken' on machine {os.uname().nodename}" in told


def test_an_argument_that_a_worker_can_not_load_ends_the_run_at_once(
    project: Path, elsewhere: tuple[Path, dict[str, str]]
) -> None:
    program = """
        import shapes.model
        from shoal import task
        from shoal.errors import UsageError

        @task
        def same(x):
            return x

        try:
            same(shapes.model.Square(3)).compute(exclude_files="shapes")
        except UsageError as error:
            print(error)
    """
    told = answer(elsewhere, program)
    assert "No module named 'shapes'" in told
    assert f"on {os.uname().nodename}" in told


def test_what_is_too_large_is_named_with_the_way_to_leave_it_out(
    project: Path, elsewhere: tuple[Path, dict[str, str]]
) -> None:
    (project / "shapes" / "data").mkdir(exist_ok=True)
    for number in range(9):
        with (project / "shapes" / "data" / f"{number}.bin").open("wb") as file:
            file.truncate(8 * 2**20)
    program = """
        from shapes.area import area
        from shapes.model import Square
        from shoal.errors import CodeTooLarge

        try:
            area(Square(3)).compute()
        except CodeTooLarge as error:
            print(error)
            print(area(Square(3)).compute(exclude_files="shapes/data"))
    """
    told = answer(elsewhere, program)
    for number in range(9):
        (project / "shapes" / "data" / f"{number}.bin").unlink()
    assert "has 72.0 MB, but only 64 MB may travel" in told
    assert "The largest parts are shapes/data (72.0 MB)" in told
    assert "exclude_files='shapes/data'" in told
    assert told.endswith("\n9")


def test_a_large_data_file_stays_here_with_a_warning(
    project: Path, elsewhere: tuple[Path, dict[str, str]]
) -> None:
    with (project / "shapes" / "large.bin").open("wb") as file:
        file.truncate(9 * 2**20)
    program = """
        from shapes.area import area
        from shapes.model import Square
        print(area(Square(3)).compute(), area(Square(4)).compute())
    """
    told = answer(elsewhere, program)
    (project / "shapes" / "large.bin").unlink()
    assert told.startswith("9 16")
    assert told.count("large.bin is too large to travel") == 1


def test_workers_of_a_farm_get_the_code_and_so_do_its_tasks(
    project: Path, elsewhere: tuple[Path, dict[str, str]]
) -> None:
    program = """
        import helper
        from shapes.model import Square
        from shoal import Farm

        def area(given):
            import lazily
            return helper.times(given.side, given.side), type(given).__name__, lazily.VALUE[:8]

        with Farm(area, workers=2) as farm:
            print(list(farm.map([Square(2), Square(3)])))
    """
    assert answer(elsewhere, program) == "[(4, 'Square', 'imported'), (9, 'Square', 'imported')]"


def test_functions_of_an_executor_find_their_modules(
    project: Path, elsewhere: tuple[Path, dict[str, str]]
) -> None:
    program = """
        import helper
        from shapes.model import Square
        from shoal import ShoalExecutor

        with ShoalExecutor(max_workers=2) as executor:
            print([*executor.map(helper.times, [1, 2], [3, 4])])
            print(executor.submit(Square, 3).result())
    """
    assert answer(elsewhere, program) == "[3, 8]\nSquare(side=3)"


def test_a_run_is_resumed_with_the_module_that_was_corrected(
    project: Path, elsewhere: tuple[Path, dict[str, str]]
) -> None:
    program = """
        from pathlib import Path
        from shapes.area import area, larger
        from shapes.model import Square
        from shoal import Session

        corrected = Path("helper.py").read_text()
        Path("helper.py").write_text("def times(a, b):\\n    raise ValueError('wrong')\\n")
        with Session() as session:
            run = session.submit(area(larger(Square(3))))
            try:
                run.result()
            except ValueError:
                Path("helper.py").write_text(corrected)
                print(session.resume(run.id).result())
    """
    assert answer(elsewhere, program) == "16"


def test_a_package_that_workers_lack_is_named_before_any_task_runs(
    project: Path, elsewhere: tuple[Path, dict[str, str]]
) -> None:
    folder = project / "site-packages"
    for name in ("extra_thing", "extra_thing-1.2.3.dist-info"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "extra_thing" / "__init__.py").write_text("def f(x):\n    return x\n")
    (folder / "extra_thing-1.2.3.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: extra_thing\nVersion: 1.2.3\n"
    )
    (project / "uses.py").write_text(
        "import extra_thing\nfrom shoal import task\n\n@task\ndef f(x):\n    return x\n"
    )
    program = """
        import uses
        from shoal.errors import EnvironmentMismatch

        try:
            uses.f(1).compute()
        except EnvironmentMismatch as error:
            print(error)
    """
    told = answer(elsewhere, program, PYTHONPATH=str(folder))
    assert "they have no extra_thing instead of 1.2.3" in told
    assert "`pip install extra_thing==1.2.3`" in told
