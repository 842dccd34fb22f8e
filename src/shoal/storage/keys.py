"""The names of all keys, and the names that blobs are signed under.

The keys of a run share a hash tag, so a cluster keeps them on one node. So do those of history, and
those of the cache. Only outputs on shards have other tags, one for each shard.
"""

from functools import lru_cache
from urllib.parse import quote

from shoal.types import RunId

CLIENT = "client"
"""The mailbox of the client; no worker has this name."""


def of_run(run: RunId) -> str:
    """The prefix of a run's keys, except those of outputs on shards."""
    return f"shoal:{{{run}}}:"


def state(run: RunId) -> str:
    """Hash: the run exists; each worker's claim, epoch and resources."""
    return f"shoal:{{{run}}}:state"


def marks(run: RunId) -> str:
    """Hash: for each shared task, its marks and their payloads."""
    return f"shoal:{{{run}}}:marks"


def outputs(run: RunId) -> str:
    """Hash: saved outputs and large constants."""
    return f"shoal:{{{run}}}:outputs"


def large_outputs(run: RunId) -> str:
    """Set: the names of the outputs that have keys of their own."""
    return f"shoal:{{{run}}}:large"


def large_output(run: RunId, name: str) -> str:
    """String: a large output."""
    return f"shoal:{{{run}}}:large:{name}"


def chunks(run: RunId) -> str:
    """Set: the keys of all chunks of outputs."""
    return f"shoal:{{{run}}}:pieces"


def chunk(run: RunId) -> str:
    """Prefix of strings: the chunks of outputs."""
    return f"shoal:{{{run}}}:piece:"


def staged(run: RunId, token: str) -> str:
    """String: a large output that was sent, and that the store may still refuse."""
    return f"shoal:{{{run}}}:staged:{token}"


def shard(tag: str) -> str:
    """Set: the run exists on a shard; the keys of its outputs there."""
    return f"shoal:{{{tag}}}:shard"


def sharded_output(tag: str, token: str) -> str:
    """String: an output on a shard. Each save has a new token."""
    return f"shoal:{{{tag}}}:shard:{token}"


def parts(run: RunId) -> str:
    """Hash: each worker's part of the plan, or the common part under an empty name."""
    return f"shoal:{{{run}}}:parts"


def given(run: RunId) -> str:
    """Hash: the inputs of flexible workers."""
    return f"shoal:{{{run}}}:given"


def leases(run: RunId) -> str:
    """Hash: when each running worker's lease expires, in the server's time."""
    return f"shoal:{{{run}}}:leases"


def progress(run: RunId) -> str:
    """Hash: how many tasks each worker has executed."""
    return f"shoal:{{{run}}}:progress"


def mailbox(run: RunId, name: str) -> str:
    """Stream: the messages to a worker, or to the client."""
    return f"shoal:{{{run}}}:mailbox:{name}"


@lru_cache(maxsize=64)
def farm(run: RunId, stages: range) -> tuple[str, ...]:
    """The keys that `farm.lua` names: those of the farm, then those of some stages."""
    prefix = f"shoal:{{{run}}}:farm:"
    of_farm = (state(run), leases(run), farm_tasks(run), f"{prefix}tries", farm_dead(run))
    of_stages = (f"{prefix}{n}:{stage}" for stage in stages for n in ("queue", "idle", "later"))
    return (*of_farm, f"{prefix}held", mailbox(run, CLIENT), *of_stages)


def farm_tasks(run: RunId) -> str:
    """Hash: the input of each task of a farm."""
    return f"shoal:{{{run}}}:farm:tasks"


def farm_dead(run: RunId) -> str:
    """Hash: why each task that a farm has given up failed."""
    return f"shoal:{{{run}}}:farm:dead"


def waiting_starts(deployment: str, kind: str) -> str:
    """List: the starts that wait for a job of an engine, as events."""
    return f"shoal:{{jobs-{deployment}}}:waiting:{kind}"


def waiting_kinds(deployment: str) -> str:
    """Set: the resources that starts have waited for."""
    return f"shoal:{{jobs-{deployment}}}:kinds"


def jobs(deployment: str) -> str:
    """Hash: what each job is doing."""
    return f"shoal:{{jobs-{deployment}}}:jobs"


def wanted_jobs(deployment: str) -> str:
    """List: wakes the processes that start jobs."""
    return f"shoal:{{jobs-{deployment}}}:wanted"


def cancelled_runs(deployment: str) -> str:
    """Sorted set: runs whose workers are to end, and when that was asked for."""
    return f"shoal:{{jobs-{deployment}}}:cancelled"


def logs(run: RunId) -> str:
    """List: what user code printed, where no gateway keeps it."""
    return f"shoal:{{{run}}}:logs"


def reports(run: RunId) -> str:
    """Channel: completed tasks, for the central schedulers of `experiments`."""
    return f"shoal:{{{run}}}:reports"


def signed_output(name: str) -> str:
    """The name that an output or a large constant is signed under."""
    return f"output of {name!r}"


def signed_mark(task: str, producer: str) -> str:
    """The name that the payload of a mark is signed under."""
    return f"mark of {task!r} by {producer!r}"


def signed_announcement(task: str) -> str:
    """The name that an announcement of a saved output is signed under."""
    return f"announcement of {task!r}"


def signed_inputs(worker: str) -> str:
    """The name that a flexible worker's inputs are signed under."""
    return f"inputs of {worker!r}"


def signed_failure(task: str) -> str:
    """The name that a task's exception is signed under."""
    return f"failure of {task!r}"


def signed_function(stage: int) -> str:
    """The name that the function of a farm's stage is signed under."""
    return f"function of stage {stage}"


def signed_value(task: str, stage: int) -> str:
    """The name that the input of a farm's task at a stage is signed under."""
    return f"value of task {task!r} before stage {stage}"


def shared_part(content: str) -> str:
    """The name of the file in shared memory with the common part, by its content."""
    return f"part of all:{content}"


SIGNED_PART = "part of a plan"
"""The name that each worker's part of a plan is signed under; the part names its worker."""


_HISTORY = "shoal:{history-2}"
"""The number is the version of the layout."""


def history_runs() -> str:
    """Sorted set: all runs in history, by start."""
    return f"{_HISTORY}:runs"


def history_ids() -> str:
    """Sorted set: all runs in history, by id."""
    return f"{_HISTORY}:ids"


def history_names() -> str:
    """Sorted set: the names of workflows, by the start of their latest run."""
    return f"{_HISTORY}:names"


def history_run(run: str) -> str:
    """Hash: the record, tasks and timelines of a run."""
    return f"{_HISTORY}:run:{run}"


def history_named(name: str) -> str:
    """Sorted set: the runs of a workflow, by start."""
    return f"{_HISTORY}:named:{quote(name, safe='')}"


def history_shapes(name: str) -> str:
    """Hash: the shape and resources of each run of a workflow."""
    return f"{history_named(name)}:shapes"


def history_samples(name: str) -> str:
    """Hash: the samples of each run of a workflow."""
    return f"{history_named(name)}:samples"


def code_archive(name: str) -> str:
    """String: the modules of users' projects that have this content."""
    return f"shoal:{{code-1:{name}}}"


_CACHE = "shoal:{cache-1}"
"""The number is the version of the layout."""


def cache_entry(name: str) -> str:
    """String: an entry of the cache."""
    return f"{_CACHE}:entry:{name}"


def cache_used() -> str:
    """Sorted set: the entries of the cache, by when they were last used."""
    return f"{_CACHE}:used"


def cache_sizes() -> str:
    """Hash: the size of each entry of the cache."""
    return f"{_CACHE}:sizes"


def cache_nbytes() -> str:
    """Number: the total size of the cache."""
    return f"{_CACHE}:nbytes"
