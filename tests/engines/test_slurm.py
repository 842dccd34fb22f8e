"""The Slurm engine, without Slurm: what its programs print, and what jobs are started with."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from shoal.engines.slurm import SlurmEngine, seconds_of, state_of
from shoal.errors import EnvironmentMismatch, PlatformError, SettingsError
from shoal.platform.engine import Ended
from shoal.platform.events import Deployment
from shoal.types import LossReason, Resources

STORE = "redis://:open%20sesame@store.example:6379/0"


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (("PENDING", "0", "0", "Resources"), "waiting"),
        (("CONFIGURING", "0", "0", "None"), "waiting"),
        (("RUNNING", "0", "0", "None"), "running"),
        (("COMPLETING", "0", "0", "None"), "running"),
        (("COMPLETED", "0", "0", "None"), Ended(code=0, detail="Slurm says COMPLETED")),
        (
            ("OUT_OF_MEMORY", "9", "0", "OutOfMemory"),
            Ended(LossReason.OUT_OF_MEMORY, -9, "Slurm says OUT_OF_MEMORY (OutOfMemory)"),
        ),
        (
            ("TIMEOUT", "15", "0", "TimeLimit"),
            Ended(LossReason.TIME_LIMIT, None, "Slurm says TIMEOUT (TimeLimit)"),
        ),
        (("CANCELLED", "15", "0", "None"), Ended(detail="Slurm says CANCELLED")),
        (("PREEMPTED", "15", "0", "None"), Ended(detail="Slurm says PREEMPTED")),
        (("NODE_FAIL", "256", "0", "NodeDown"), Ended(detail="Slurm says NODE_FAIL (NodeDown)")),
        (
            ("FAILED", "256", "0", "NonZeroExitCode"),
            Ended(code=1, detail="Slurm says FAILED (NonZeroExitCode)"),
        ),
        (("FAILED", "9", "0", "None"), Ended(code=-9, detail="Slurm says FAILED")),
        (("PENDING", "0", "1", "BeginTime"), Ended(detail="Slurm has requeued the job (PENDING)")),
    ],
)
def test_the_state_of_a_job_follows_from_what_squeue_says(
    columns: tuple[str, str, str, str], expected: object
) -> None:
    assert state_of(*columns) == expected


@pytest.mark.parametrize(
    ("limit", "seconds"),
    [("1:00:00", 3600), ("2-00:00:30", 172_830), ("30:00", 1800), ("infinite", None)],
)
def test_a_time_limit_is_read(limit: str, seconds: float | None) -> None:
    assert seconds_of(limit) == seconds


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Programs named like Slurm's that note how they are called."""
    folder = tmp_path / "bin"
    folder.mkdir()
    answers = {
        "sinfo": '[ "$2" = --partition=main ] && printf "16000 8 1:00:00 main 0/24/0/24\\n'
        '8000 4 1:00:00 main 4/0/0/4\\n"; '
        '[ "$2" = --format=%R ] && printf "main\\ngpu\\n"; exit 0',
        "sbatch": f'echo "$@" > {tmp_path}/arguments; cat > {tmp_path}/script; echo "42;here"',
    }
    for name, answer in answers.items():
        (folder / name).write_text(f"#!/bin/sh\n{answer}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return tmp_path


def engine(url: str, folder: Path) -> SlurmEngine:
    return SlurmEngine(url, Deployment(b"k" * 32, STORE), folder / "data")


def test_the_size_of_a_partition_is_found(programs: Path) -> None:
    facts = engine("slurm:///main", programs).facts
    assert (facts.memory_mb, facts.cpus, facts.seconds) == (16000 - 96, 8.0, 3600.0)


def test_a_partition_has_room_for_as_many_jobs_as_it_has_cpus(programs: Path) -> None:
    assert engine("slurm:///main", programs).facts.capacity == 28
    assert engine("slurm:///main?capacity=5", programs).facts.capacity == 5


def test_jobs_of_a_size_are_one_array(programs: Path) -> None:
    handles = engine("slurm:///main?time=90&account=lab", programs).start_many(
        b"event", Resources(2048), 3
    )
    assert handles == ["42_0", "42_1", "42_2"]
    arguments = (programs / "arguments").read_text().split()
    assert {"--array=0-2", "--mem=2144", "--cpus-per-task=1", "--time=90", "--account=lab"} <= set(
        arguments
    )
    assert {"--partition=main", "--no-requeue", "--export=NIL"} <= set(arguments)


def test_another_interpreter_is_asked_for_its_versions(programs: Path) -> None:
    python = programs / "python"
    python.write_text("#!/bin/sh\necho 3.9; echo 0.0.1\n")
    python.chmod(0o755)
    with pytest.raises(EnvironmentMismatch, match=r"Python 3\.9 .*Shoal 0\.0\.1 instead of"):
        engine(f"slurm:///main?python={python}", programs).check()
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    assert "accepts jobs in main" in engine(f"slurm:///main?python={python}", programs).check()


def test_no_secret_is_in_the_script_or_on_the_command_line(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_STORE", STORE)
    monkeypatch.setenv("PYTHON_KEYRING_PASSWORD", "open sesame")
    engine("slurm:///main", programs).start(b"event", Resources(512))
    for name in ("script", "arguments"):
        text = (programs / name).read_text()
        assert "sesame" not in text
        assert (b"k" * 32).hex() not in text
    assert "SHOAL_DEPLOYMENT_FILE" in (programs / "script").read_text()


def test_a_job_that_slurm_takes_long_to_end_has_ended(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its reason comes late, but its worker can be replaced."""
    squeue = programs / "bin" / "squeue"
    squeue.write_text("#!/bin/sh\necho 42 0 COMPLETING 0 0 None; echo 42 1 RUNNING 0 0 None\n")
    squeue.chmod(0o755)
    ending, now = engine("slurm:///main", programs), 100.0
    monkeypatch.setattr("shoal.engines.slurm.time.monotonic", lambda: now)
    handles = ["42_0", "42_1"]
    assert ending.states(handles) == {"42_0": "running", "42_1": "running"}
    now += 0.2
    found = ending.states(handles)
    assert found["42_0"] == Ended(detail="Slurm is ending the job")
    assert found["42_1"] == "running"


def test_an_unknown_partition_is_refused_with_those_there_are(programs: Path) -> None:
    with pytest.raises(SettingsError, match=r"no such partition\. It has gpu, main\."):
        engine("slurm:///other", programs)


def test_an_unknown_option_is_refused(programs: Path) -> None:
    with pytest.raises(SettingsError, match="unknown option 'tiem'"):
        engine("slurm:///main?tiem=5", programs)


def test_a_machine_without_slurm_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SettingsError, match="'sinfo' isn't installed"):
        engine("slurm:///main", tmp_path)


def test_what_sbatch_says_is_in_the_error(programs: Path) -> None:
    (programs / "bin" / "sbatch").write_text(
        "#!/bin/sh\necho 'sbatch: error: invalid account' >&2\nexit 1\n"
    )
    with pytest.raises(PlatformError, match=r"`sbatch --parsable` failed: .*invalid account"):
        engine("slurm:///main", programs).start(b"event", Resources(512))
