"""Measure many clients on one standalone gateway, and one very large run on the embedded default.

1. `--clients` clients, threads of `--processes` processes, each with its own session, submit
   workflows of 10 tasks one after the other to one `shoal gateway`, with one Valkey server, for
   `--seconds`. The output has runs per second, the duration of runs, errors, and the gateway's
   memory every minute. Clients never pause, so the machine is saturated, and a run mostly waits for
   others.
2. One run of `--tasks` tasks, with the peak memory of each process. The memory of sandboxes, which
   are forked, includes what they share with their zygote.

Everything runs in a temporary folder and is stopped with the benchmark.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median

from arguments import positive
from processes import adopt_orphans, descendants, end_all

from shoal import Session
from shoal.errors import ShoalError
from shoal.experiments import machine
from shoal.experiments.tree_reduction import tree_reduction
from shoal.platform.http import HttpPlatform
from shoal.storage.embedded import server_binary

TOKEN = secrets.token_urlsafe(32)
TASKS = 10
"""The number of tasks in each small workflow."""
START_SECONDS = 60
GRACE = 120
"""How many seconds clients have to stop when the time is over."""
FLAT = 0.05
"""The largest growth in the second half with which the gateway's memory counts as flat."""
TELLING = 180
"""The shortest duration, in seconds, in which a leak differs from the gateway's warm-up."""


def submit_until(end: float, seconds: list[float], errors: Counter[str]) -> None:
    """Run workflows as one client until the time is over."""
    expected = TASKS * (TASKS + 1) // 2
    with Session(progress=False) as session:
        while time.time() < end:
            begin = time.perf_counter()
            try:
                (value,) = session.compute(tree_reduction(TASKS + 1), name="load", timeout=GRACE)
            except ShoalError as error:
                errors[f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"] += 1
                continue
            seconds.append(time.perf_counter() - begin)
            if value != expected:
                errors[f"a wrong result: {value}"] += 1


def be_clients(count: int, end: float) -> None:
    """Run a process of clients; print the duration and the error of each run."""
    seconds: list[float] = []
    errors: Counter[str] = Counter()

    def client() -> None:
        try:
            submit_until(end, seconds, errors)
        except Exception as error:  # noqa: BLE001 - whatever ends a client is told
            errors[f"a client ended: {error!r}"] += 1

    threads = [threading.Thread(target=client) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps({"seconds": seconds, "errors": errors}))


def be_large(tasks: int) -> None:
    """Run the client of one large run; print how long each step took."""
    begin = time.perf_counter()
    output = tree_reduction(tasks + 1)
    built = time.perf_counter() - begin
    with Session(progress=False) as session:
        run = session.submit(output, name="large")
        right = run.result(GRACE * 10) == tasks * (tasks + 1) // 2
        session.settle()
        print(json.dumps({"built": built, "planned": run.preview.planning, "right": right,
                          "makespan": run.makespan, "planner": run.plan.planner}))  # fmt: skip


@contextmanager
def served(folder: Path) -> Iterator[int]:
    """Start a store and a gateway, set the environment, and yield the gateway's process id."""
    socket = folder / "valkey.sock"
    os.environ["SHOAL_TOKEN"] = TOKEN
    command = [str(server_binary()), "--port", "0", "--unixsocket", str(socket), "--save", ""]
    store = subprocess.Popen([*command, "--dir", str(folder)], stdout=subprocess.DEVNULL)
    gateway = subprocess.Popen(
        [sys.executable, "-m", "shoal.cli.main", "gateway", "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert gateway.stdout is not None
        line = gateway.stdout.readline()
        os.environ["SHOAL_PLATFORM"] = line.split()[2].rstrip(",")
        os.environ["SHOAL_STORE"] = f"unix://{socket}"
        deadline = time.monotonic() + START_SECONDS
        while not socket.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        yield gateway.pid
    finally:
        for name in ("SHOAL_PLATFORM", "SHOAL_STORE", "SHOAL_TOKEN"):
            os.environ.pop(name, None)
        for process in (gateway, store):
            process.terminate()
            process.wait(START_SECONDS)


def memory_mb(pid: int, what: str = "VmRSS") -> float:
    """Return a process's memory; 0 if it has exited."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith(what)), 0.0)


def load(options: argparse.Namespace, folder: Path) -> bool:
    """Run many clients on one gateway, and return whether all succeeded."""
    seconds: list[float] = []
    errors: Counter[str] = Counter()
    with served(folder) as gateway:
        end = time.time() + options.seconds
        shares = [options.clients // options.processes] * options.processes
        for extra in range(options.clients % options.processes):
            shares[extra] += 1
        clients = [_role("--as-clients", str(share), "--until", str(end)) for share in shares]
        memory = _watched_memory(gateway, end)
        for client in clients:
            said, _ = client.communicate(timeout=GRACE * 2)
            if client.returncode:
                errors[f"a process of clients ended with {client.returncode}"] += 1
                continue
            told = json.loads(said)
            seconds += told["seconds"]
            errors.update(told["errors"])
        memory.append(memory_mb(gateway))
        with closing(HttpPlatform(os.environ["SHOAL_PLATFORM"], TOKEN)) as platform:
            starts = platform.status()["invocations"]
    print(f"  workers started: {starts['cold']:,} cold, {starts['warm']:,} warm; "
          f"{starts['died'] + starts['out_of_memory']} died")  # fmt: skip
    _tell_load(options, sorted(seconds), errors, memory)
    return not errors


def _role(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _watched_memory(gateway: int, end: float) -> list[float]:
    """Samples the gateway's memory every second, and prints it every minute."""
    found: list[float] = []
    begin = time.time()
    while time.time() < end:
        found.append(memory_mb(gateway))
        if len(found) % 60 == 1:
            passed = time.time() - begin
            print(f"  gateway after {passed:4.0f} s: {found[-1]:.1f} MB, "
                  f"{_open_files(gateway)} open files", flush=True)  # fmt: skip
        time.sleep(1.0)
    return found


def _open_files(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


def _tell_load(
    options: argparse.Namespace, seconds: list[float], errors: Counter[str], memory: list[float]
) -> None:
    count = len(seconds)
    print(f"  {count:,} runs of {TASKS} tasks by {options.clients} clients in {options.seconds} s: "
          f"{count / options.seconds:.1f} runs a second")  # fmt: skip
    if seconds:
        levels = {f"{p} %": seconds[min(count - 1, count * p // 100)] for p in (50, 90, 99)}
        told = ", ".join(f"{level} {value:.3f} s" for level, value in levels.items())
        print(f"  a run took: {told}, at most {seconds[-1]:.3f} s")
    middle = memory[len(memory) // 4 : len(memory) // 2] or memory
    late = memory[len(memory) * 3 // 4 :]
    before, after = median(middle), median(late)
    verdict = "flat" if after <= before * (1 + FLAT) else "not flat"
    if options.seconds < TELLING:
        verdict = "too short a time to tell whether that is flat"
    print(f"  gateway's memory: {before:.1f} MB in the second quarter, {after:.1f} MB in the last: "
          f"{verdict}")  # fmt: skip
    print(f"  errors: {sum(errors.values())}")
    for what, times in errors.most_common(10):
        print(f"    {times} x {what}")


def large(options: argparse.Namespace) -> bool:
    """Run one large workflow, and return whether its result was right."""
    client = _role("--as-large", str(options.tasks))
    peaks: dict[int, tuple[str, float]] = {}
    while client.poll() is None:
        for pid in descendants(os.getpid()):
            peak = memory_mb(pid, "VmHWM")
            if peak:
                peaks[pid] = (_part_of(pid, client.pid, peaks), peak)
        time.sleep(0.2)
    assert client.stdout is not None
    said = client.stdout.read()
    if client.returncode:
        print(f"  the client ended with {client.returncode}")
        return False
    told = json.loads(said)
    print(f"  {options.tasks:,} tasks by {told['planner']}: built in {told['built']:.2f} s, "
          f"planned in {told['planned']:.2f} s, makespan {told['makespan']:.2f} s, "
          f"result {'right' if told['right'] else 'WRONG'}")  # fmt: skip
    for part, peak in sorted(peaks.values()):
        print(f"  peak memory of {part}: {peak:.1f} MB")
    return bool(told["right"])


def _part_of(pid: int, client: int, known: dict[int, tuple[str, float]]) -> str:
    """Return the role of a process in a run."""
    if pid == client:
        return "client"
    try:
        command = Path(f"/proc/{pid}/cmdline").read_text()
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return known.get(pid, ("another process", 0.0))[0]
    for word, part in (("keeper.py", "the server's keeper"), ("valkey-server", "server")):
        if word in command:
            return part
    return "sandbox" if known.get(parent, ("", 0.0))[0] == "zygote" else "zygote"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--seconds", type=positive, default=300, help="duration in seconds (default: 300)"
    )
    parser.add_argument(
        "--clients", type=positive, default=64, help="number of clients (default: 64)"
    )
    parser.add_argument(
        "--processes", type=positive, default=4, help="number of client processes (default: 4)"
    )
    parser.add_argument(
        "--tasks", type=positive, default=100_000, help="tasks of the large run (default: 100000)"
    )
    parser.add_argument("--only", choices=["load", "large"], help="run only this part")
    for role in ("--as-clients", "--as-large"):
        parser.add_argument(role, type=int, help=argparse.SUPPRESS)
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_clients:
        be_clients(options.as_clients, options.until)
    elif options.as_large:
        be_large(options.as_large)
    else:
        sys.exit(0 if measure(options) else 1)


def measure(options: argparse.Namespace) -> bool:
    """Run both parts, or one."""
    adopt_orphans()
    for variable in [name for name in os.environ if name.startswith("SHOAL_")]:
        del os.environ[variable]
    print(machine.described())
    well = True
    with tempfile.TemporaryDirectory() as folder:
        for variable in ("XDG_DATA_HOME", "XDG_RUNTIME_DIR"):
            os.environ[variable] = folder
        try:
            if options.only != "large":
                print(f"Load: {options.clients} clients, threads of {options.processes} processes")
                well = load(options, Path(folder))
            if options.only != "load":
                print("One large run on the embedded default")
                well = large(options) and well
        finally:
            end_all()
    return well


if __name__ == "__main__":
    main()
