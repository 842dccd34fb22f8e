"""Zygotes and sandboxes as processes: which end together, and what forks don't share."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from observing import TIMEOUT, branch_of, eventually, outside, parent, processes_mentioning
from platform_entries import read_notes
from platform_examples import ENTRY, Caller, gateway
from shoal import system
from shoal.platform import limits
from shoal.platform.isolation import problem
from shoal.platform.sandbox_env import hidden_folder

pytestmark = pytest.mark.real

CLIENT = """
import sys, time
from pathlib import Path
sys.path[:0] = {path!r}
from platform_examples import Caller, gateway
folder = Path(sys.argv[1])
with gateway(folder, entry=sys.argv[2]) as local:
    caller = Caller(local, folder)
    caller.invoke(caller.job("w0", "raise 300"), caller.job("w1", "await go"))
    caller.await_notes("began", 2)
    print("ready", flush=True)
    time.sleep(300)
"""


@pytest.fixture(params=[ENTRY, *(["platform_entries_rlimit:act"] if system.LIMITS_DATA else [])])
def client(tmp_path: Path, request: pytest.FixtureRequest) -> subprocess.Popen[str]:
    """A process with a gateway and two busy sandboxes, one with a child and a grandchild."""
    program = CLIENT.format(path=[str(Path(__file__).parents[1])])
    environment = dict(os.environ) | {"OF_TEST": str(tmp_path)}
    return subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path), request.param],
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    )


def groups(zygote: int) -> list[Path]:
    """Return the control groups of a zygote's sandboxes."""
    machine = limits.detect()
    if not machine.grouped:
        return []
    name = f"shoal-{zygote}-*"
    return [*machine.cpu.glob(name), *machine.memory.glob(name)]


def await_work(client: subprocess.Popen[str], folder: Path) -> int:
    """Wait until both sandboxes are busy, and return the zygote's branch."""
    assert client.stdout is not None
    assert client.stdout.readline() == "ready\n"
    assert eventually(lambda: (folder / "raised").exists())
    # Client, zygote, branch, two guards where there are any, two sandboxes, child, grandchild.
    guards = 0 if problem(str(hidden_folder())) else 2
    assert eventually(lambda: len(processes_mentioning(str(folder))) == 7 + guards)
    return branch_of(outside(read_notes(folder, "began")[0]["sandbox"]))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_killing_the_gateways_process_leaves_no_process(
    client: subprocess.Popen[str], tmp_path: Path, number: int
) -> None:
    with client:
        zygote = await_work(client, tmp_path)
        client.send_signal(number)
        assert client.wait(TIMEOUT) == -number
    assert eventually(lambda: not processes_mentioning(str(tmp_path)))
    assert eventually(lambda: not groups(zygote))


def test_killing_a_zygote_leaves_no_process(client: subprocess.Popen[str], tmp_path: Path) -> None:
    with client:
        zygote = await_work(client, tmp_path)
        os.kill(parent(zygote), signal.SIGKILL)
        assert eventually(lambda: processes_mentioning(str(tmp_path)).keys() == {client.pid})
        client.kill()
    assert eventually(lambda: not Path(f"/proc/{zygote}").exists())
    with gateway(tmp_path) as local:
        caller = Caller(local, tmp_path)
        caller.carry_out(caller.job())
    assert not groups(zygote)


def test_processes_started_by_user_code_end_with_the_sandbox(tmp_path: Path) -> None:
    with gateway(tmp_path) as local:
        caller = Caller(local, tmp_path)
        caller.invoke(caller.job(part="raise 305"))
        assert eventually(lambda: processes_mentioning("sleep\x00305"))
        local.cancel(caller.job().run)
        assert eventually(lambda: not processes_mentioning("sleep\x00305"))


@pytest.mark.skipif(not system.PRELOADS, reason="packages are preloaded only on Linux")
def test_the_garbage_collector_is_on_in_sandboxes_and_for_preloaded_modules(tmp_path: Path) -> None:
    """Dask remembers it, and would turn it off for good once a task slices an array."""
    with gateway(tmp_path) as local:
        caller = Caller(local, tmp_path)
        caller.carry_out(caller.job(part="collect found", preload=("remembers_collector",)))
    fresh = [sys.executable, "-c", "import gc; print(gc.get_threshold())"]
    thresholds = subprocess.check_output(fresh, text=True).strip()
    assert (tmp_path / "found").read_text() == f"True True {thresholds}"


def test_sandboxes_do_not_share_random_numbers(tmp_path: Path) -> None:
    with gateway(tmp_path) as local:
        caller = Caller(local, tmp_path)
        for number in range(3):
            given = {"session": f"s{number}", "preload": ("no_such", "numpy.random")}
            caller.carry_out(caller.job(f"w{number}", "draw numbers", **given))
    drawn = [path.read_text().split() for path in tmp_path.glob("numbers-*")]
    assert len(drawn) == 3
    plain, numpy = zip(*drawn, strict=True)
    assert len(set(plain)) == 3
    assert len(set(numpy)) == 3
