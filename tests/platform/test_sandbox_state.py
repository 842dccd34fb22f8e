"""A task's damage to its process affects no other run; ordinary library use keeps it warm."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from platform_examples import Caller, gateway
from shoal.platform.gateway import LocalGateway
from shoal.types import RunId

pytestmark = pytest.mark.real

DAMAGE = {
    "standard streams": "import os; os.close(1)",
    "standard streams, too": "import os; os.dup2(os.open(os.devnull, os.O_WRONLY), 1)",
    "open files": "import os; [os.dup(0) for _ in range(200)]",
    "open files up to the limit": (
        "import os, resource\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
        "try:\n"
        "    while True: os.dup(0)\n"
        "except OSError: pass"
    ),
    "user": "import os; os.setuid(65534)",
    "group": "import os; os.setegid(65534)",
    "environment": "import os; os.environ['OF_TASK'] = '1'",
    "environment, less": "import os; del os.environ['PATH']",
    "environment, another": "import os; os.environ = dict(os.environ)",
    "umask": "import os; os.umask(0o777)",
    "niceness": "import os; os.nice(5)",
    "signal mask": "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])",
    "signal handlers": "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)",
    "timer": "import signal; signal.setitimer(signal.ITIMER_REAL, 1000)",
    "limits": "import resource as r; r.setrlimit(r.RLIMIT_FSIZE, (0, 0))",
    "socket timeout": "import socket; socket.setdefaulttimeout(0.001)",
    "garbage collector": "import gc; gc.disable()",
    "garbage collector, thresholds": "import gc; gc.set_threshold(1, 1, 1)",
    "temporary folder": "import tempfile; tempfile.tempdir = '/nowhere'",
    "own folder": "import shutil, tempfile; shutil.rmtree(tempfile.gettempdir())",
    "hung up": "import os; os.closerange(3, 100)",
}

HARMLESS = {
    "an import": "import xml.dom.minidom, sqlite3",
    "a library's variables": "import sets_variables",
    "numpy": "import numpy; numpy.ones((200, 200)) @ numpy.ones((200, 200))",
    "a few open files": "import os; [os.dup(0) for _ in range(20)]",
    "a thread": "import threading; threading.Thread(target=print, daemon=True).start()",
    "a variable set and taken back": "import os; os.environ['A'] = 'b'; del os.environ['A']",
    "working folder": "import os; os.chdir('/')",
    "streams replaced": "import io, sys; sys.stdout = io.StringIO()",
    "temporary files": "import tempfile; tempfile.mkstemp()",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("condition")


@pytest.fixture(scope="module")
def local(folder: Path) -> Iterator[LocalGateway]:
    (folder / "sets_variables.py").write_text(
        "import os\nos.environ.setdefault('OF_LIBRARY', '1')\nos.environ.pop('LANG', None)\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        with gateway(folder, capacity=2) as local:
            yield local


def second_start(local: LocalGateway, folder: Path, code: str) -> str:
    """Return how the second run's sandbox started after a task did something in the first."""
    caller, number = (
        Caller(local, folder),
        len(local._sandboxes) + len(Caller(local, folder).notes()),
    )
    before, after = RunId(f"run-{number}-1"), RunId(f"run-{number}-2")
    session = f"s{number}"
    caller.carry_out(caller.job("w1", f"do {code}", run=before, session=session))
    caller.carry_out(caller.job("w2", "print again", run=after, session=session))
    assert {line.text for line in local.logs(after)} == {"again", "AGAIN"}
    (ended,) = [line for line in caller.notes("ended") if line["run"] == after]
    return str(ended["start"])


@pytest.mark.parametrize("code", DAMAGE.values(), ids=DAMAGE)
def test_damage_done_by_a_task_does_not_reach_the_next_run(
    local: LocalGateway, folder: Path, code: str
) -> None:
    if ("uid(" in code or "gid(" in code) and os.getuid() != 0:
        pytest.skip("only root can become another user")
    assert second_start(local, folder, code) == "cold"


@pytest.mark.parametrize("code", HARMLESS.values(), ids=HARMLESS)
def test_what_tasks_usually_do_leaves_the_sandbox_reusable(
    local: LocalGateway, folder: Path, code: str
) -> None:
    assert second_start(local, folder, code) == "warm"


def test_the_next_run_starts_in_the_same_folder(local: LocalGateway, folder: Path) -> None:
    caller = Caller(local, folder)
    code = "import os; print(os.getcwd()); os.chdir('/')"
    for number in (1, 2):
        caller.carry_out(caller.job("w1", f"do {code}", run=RunId(f"where-{number}"), session="w"))
    first, second = (local.logs(RunId(f"where-{number}"))[0].text for number in (1, 2))
    assert first == second


def test_changes_made_while_importing_a_module_persist(local: LocalGateway, folder: Path) -> None:
    caller = Caller(local, folder)
    code = "import os, sets_variables; print(os.environ.get('OF_LIBRARY'), 'LANG' in os.environ)"
    for number in (1, 2):
        caller.carry_out(caller.job("w1", f"do {code}", run=RunId(f"set-{number}"), session="v"))
        assert [line.text for line in local.logs(RunId(f"set-{number}"))] == ["1 False"]
    assert caller.notes("ended")[-1]["start"] == "warm"
