"""What sandboxes see of the machine: variables, folders and other sandboxes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from observing import TIMEOUT, eventually, outside
from platform_examples import Caller, gateway
from shoal import system
from shoal.platform.gateway import LocalGateway
from shoal.platform.isolation import problem
from shoal.platform.sandbox_env import SandboxEnv, hidden_folder, home_of, sweep, variable_names
from shoal.platform.tokens import write_token
from shoal.types import RunId

SECRETS = {
    "SHOAL_TOKEN": "s1",
    "SHOAL_STORE": "redis://:s2@host",
    "AWS_ACCESS_KEY_ID": "s3",
    "AWS_PROFILE": "s4",
    "DATABASE_PASSWORD": "s5",
    "GITHUB_TOKEN": "s6",
    "OPENAI_API_KEY": "s7",
    "PYTHON_REGISTRY_TOKEN": "s8",
    "XDG_SECRET": "s9",
    "ANYTHING": "s10",
}
HARMLESS = {"PATH": "/bin", "HOME": "/root", "LANG": "C", "LC_ALL": "C", "TZ": "UTC",
            "PYTHONHASHSEED": "0", "XDG_RUNTIME_DIR": "/run", "OMP_NUM_THREADS": "1",
            "SHOAL_ENVIRONMENT": "0f3c"}  # fmt: skip


def test_only_harmless_variables_reach_a_sandbox() -> None:
    assert SandboxEnv().environment(SECRETS | HARMLESS) == HARMLESS


def test_named_variables_reach_a_sandbox_too() -> None:
    sandbox_env = SandboxEnv(variables=variable_names(" ANYTHING, AWS_PROFILE ,,"))
    given = sandbox_env.environment(SECRETS | HARMLESS)
    assert given == HARMLESS | {"ANYTHING": "s10", "AWS_PROFILE": "s4"}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("A*", {"AWS_ACCESS_KEY_ID", "AWS_PROFILE", "ANYTHING"}),
        ("AWS_*,*_TOKEN", {"AWS_ACCESS_KEY_ID", "AWS_PROFILE", "GITHUB_TOKEN",
                           "PYTHON_REGISTRY_TOKEN"}),
        ("*", SECRETS.keys() - {"SHOAL_TOKEN", "SHOAL_STORE"}),
        ("SHOAL_T*", {"SHOAL_TOKEN"}),
        ("any*", set()),
    ],
)  # fmt: skip
def test_patterns_pass_variables_but_shoals_own_only_by_their_own_patterns(
    text: str, names: set[str]
) -> None:
    given = SandboxEnv(variables=variable_names(text)).environment(SECRETS | HARMLESS)
    assert given.keys() - HARMLESS.keys() == names


def test_folders_of_ended_sandboxes_are_deleted(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    for number in (ended.pid, os.getpid()):
        home_of(str(tmp_path), number).mkdir(parents=True)
    sweep(str(tmp_path))
    assert [home.name for home in (tmp_path / "sandboxes").iterdir()] == [str(os.getpid())]


# In real sandboxes.

pytestmark = pytest.mark.real
namespaced = pytest.mark.skipif(not system.LINUX, reason="only Linux has namespaces")


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A runtime folder without other sandboxes."""
    (tmp_path / "run").mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))


@pytest.fixture
def reason(runtime: None) -> str:
    """The reason why this machine can't isolate sandboxes; empty if it can."""
    return problem(str(hidden_folder()))


@pytest.fixture
def local(tmp_path: Path, reason: str) -> Iterator[LocalGateway]:
    if reason:
        pytest.skip(f"no namespaces here: {reason}")
    with gateway(tmp_path) as local:
        yield local


@pytest.fixture
def caller(local: LocalGateway, tmp_path: Path) -> Caller:
    return Caller(local, tmp_path)


def seen_inside(caller: Caller, name: str = "facts", **job: Any) -> dict[str, Any]:
    """Return what a sandbox finds around it."""
    caller.carry_out(caller.job(part=f"look {name}", **job))
    found: dict[str, Any] = json.loads((caller.folder / name).read_text())
    return found


def test_a_sandbox_has_no_secret_in_its_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in SECRETS.items():
        if not name.startswith("SHOAL_"):
            monkeypatch.setenv(name, value)
    with gateway(tmp_path, sandbox_env=SandboxEnv(variables=("AWS_PROFILE",))) as local:
        found = seen_inside(Caller(local, tmp_path))
    assert SECRETS.keys() & found["environment"].keys() == {"AWS_PROFILE"}
    assert found["environment"]["PATH"] == os.environ["PATH"]


def test_a_sandbox_gains_no_privileges_and_leads_its_own_process_group(caller: Caller) -> None:
    found = seen_inside(caller)
    assert "NoNewPrivs:\t1" in found["status"]
    assert found["group"] == found["pid"]


def test_a_sandbox_cannot_mount_trace_or_load_modules(caller: Caller) -> None:
    status = seen_inside(caller)["status"]
    effective = int(status.partition("CapEff:\t")[2].split()[0], 16)
    for forbidden in (16, 17, 19, 21, 27):  # modules, raw I/O, tracing, administration, devices
        assert not effective >> forbidden & 1


@pytest.mark.parametrize("session", ["s1", "s2"])
def test_sandboxes_cannot_see_or_signal_each_other(caller: Caller, session: str) -> None:
    """The sandboxes belong to one session or to two."""
    caller.invoke(caller.job("w1", "stay other", session=session))
    other_there = caller.folder / "other"
    assert eventually(other_there.exists)
    caller.carry_out(caller.job("w2", "spy other", session="s1", run=RunId("run-2")))
    other = json.loads(other_there.read_text())
    found = json.loads((caller.folder / "other-spied").read_text())
    assert {1, found["pid"]} == {*found["processes"]}
    assert other["pid"] != found["pid"]
    assert not found["kill"]
    assert not found["killpg"]
    assert not found["files"]
    assert (Path(other["temporary"]) / "left").exists()
    caller.let_go()
    caller.await_quiet()


def test_a_sandbox_cannot_kill_its_guard(caller: Caller) -> None:
    caller.carry_out(caller.job("w1", "signal 1"))
    assert [line["event"] for line in caller.notes()] == ["began", "ended"]


@pytest.mark.parametrize("code", [0, 3, 137, 255])
def test_the_exit_code_of_a_sandbox_is_reported(
    caller: Caller, local: LocalGateway, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    codes: list[int] = []
    monkeypatch.setattr(local._supervisor, "lost", lambda job, loss, most: codes.append(loss.code))
    caller.carry_out(caller.job(part=f"exit {code}"))
    assert codes == [code]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_the_signal_that_killed_a_sandbox_is_reported(
    caller: Caller, local: LocalGateway, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    codes: list[int] = []
    monkeypatch.setattr(local._supervisor, "lost", lambda job, loss, most: codes.append(loss.code))
    caller.invoke(caller.job(part="await go"))
    os.kill(outside(caller.await_notes("began")[0]["sandbox"]), number)
    caller.await_quiet()
    assert codes == [-number]


def test_sandboxes_of_one_session_have_different_process_ids(caller: Caller) -> None:
    jobs = [caller.job(f"w{number}", "await go") for number in range(3)]
    caller.invoke(*jobs)
    began = caller.await_notes("began", 3)
    assert len({line["sandbox"] for line in began}) == 3
    caller.let_go()
    caller.await_quiet()


def test_a_sandbox_sees_neither_the_token_nor_other_sandboxes_folders(caller: Caller) -> None:
    write_token(hidden_folder() / "gateway-1.token", "secret", "http://127.0.0.1:1")
    try:
        caller.invoke(caller.job("w1", "await go", session="s2"))
        caller.await_notes("began")
        (other,) = os.listdir(hidden_folder() / "sandboxes")
        found = seen_inside(caller, session="s1", run=RunId("run-2"))
    finally:
        (hidden_folder() / "gateway-1.token").unlink()
    assert found["hidden"] == ["sandboxes"]
    assert len(found["folders"]) == 1
    assert other not in found["folders"]
    assert found["beside"] == [Path(found["temporary"]).name]
    assert found["writable"]
    assert not found["others_writable"]  # no other process would see it
    caller.let_go()
    caller.await_quiet()


def test_temporary_files_are_deleted_with_the_sandbox(caller: Caller, local: LocalGateway) -> None:
    found = seen_inside(caller)
    home = Path(found["temporary"])
    assert home.is_relative_to(hidden_folder())
    assert (home / "left").exists()
    local.close()
    assert os.listdir(hidden_folder() / "sandboxes") == []


def test_an_embedded_sandbox_uses_the_clients_folder_and_a_remote_one_its_own(
    tmp_path: Path,
) -> None:
    """The invocation names the folder, and the entry point of real workers changes to it."""
    for own in (False, True):
        with gateway(
            tmp_path, sandbox_env=SandboxEnv(own_folder=own), entry=f"{__name__}:show"
        ) as local:
            caller = Caller(local, tmp_path)
            caller.invoke(caller.job())
            caller.await_quiet()
            shown = [line.text for line in local.logs(caller.job().run)][-2:]
        assert shown[0] == ("" if own else str(tmp_path))
        assert Path(shown[1]).is_relative_to(hidden_folder())


def show(job: dict[str, Any], running: Any) -> bool:
    """Print the folder that the client names and the sandbox's working folder."""
    print(job.context.code.folder)
    print(os.getcwd())
    return True


def test_without_isolation_sandboxes_work_with_a_warning(tmp_path: Path) -> None:
    with gateway(tmp_path, sandbox_env=SandboxEnv(isolation=False)) as local:
        found = seen_inside(Caller(local, tmp_path))
        assert local.status()["isolation"] == "switched off"
        assert len(found["processes"]) > 2
        home = Path(found["temporary"])
        assert home.is_relative_to(hidden_folder())
    assert not home.exists()


@namespaced
def test_sandboxes_work_where_namespaces_are_not_permitted(tmp_path: Path) -> None:
    with gateway(tmp_path, entry="platform_entries_open:act") as local:
        caller = Caller(local, tmp_path)
        caller.carry_out(caller.job())
        assert "not permitted" in local.status()["isolation"]


@namespaced
@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_an_unprivileged_users_sandboxes_are_isolated_too(tmp_path: Path, reason: str) -> None:
    """They use a user namespace; where the system forbids that, they warn and work without."""
    program = (
        "import os, sys\n"
        "from shoal.platform.isolation import problem\n"
        "from shoal.platform.namespaces import _libc\n"
        "os.setgid(65534); os.setgroups([]); os.setuid(65534); _libc.prctl(4, 1)\n"
        "os.makedirs(sys.argv[1]); print(problem(sys.argv[1]))"
    )
    tmp_path.chmod(0o777)
    for folder in tmp_path.parents[:3]:
        if folder != Path("/tmp"):
            folder.chmod(0o755)
    said = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "hidden")],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert said.returncode == 0, said.stderr
    assert said.stdout.strip() in (
        "",
        "Operation not permitted",
        "[Errno 1] Operation not permitted",
    )
