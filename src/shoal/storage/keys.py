"""Every key name, and every name that a blob of a run is signed as, in one place.

A run's keys share a hash tag, so a cluster keeps them together; so do those of history, and those
of the cache. Only the outputs that are spread over shards have tags of their own, one for each
shard.
"""

from urllib.parse import quote

from shoal.types import RunId

CLIENT = "client"
"""The mailbox of whoever waits for the run; no worker has that name."""


def of_run(run: RunId) -> str:
    """How all keys of a run begin, but for outputs that are spread over shards."""
    return f"shoal:{{{run}}}:"


def state(run: RunId) -> str:
    """Hash: that the run exists, who may start each worker, each one's epoch and resources."""
    return f"shoal:{{{run}}}:state"


def marks(run: RunId) -> str:
    """Hash: for each shared task, the marks set and what came with them."""
    return f"shoal:{{{run}}}:marks"


def outputs(run: RunId) -> str:
    """Hash: saved outputs and large constants."""
    return f"shoal:{{{run}}}:outputs"


def large_outputs(run: RunId) -> str:
    """Set: the names of the outputs that have a key of their own."""
    return f"shoal:{{{run}}}:large"


def large_output(run: RunId, name: str) -> str:
    """String: a large output."""
    return f"shoal:{{{run}}}:large:{name}"


def pieces(run: RunId) -> str:
    """Set: the keys of all pieces of outputs that are longer than the server takes at once."""
    return f"shoal:{{{run}}}:pieces"


def piece(run: RunId) -> str:
    """How the keys of such pieces begin; each is a string."""
    return f"shoal:{{{run}}}:piece:"


def staged(run: RunId, token: str) -> str:
    """String: a large output on its way, which the store may still refuse."""
    return f"shoal:{{{run}}}:staged:{token}"


def shard(tag: str) -> str:
    """Set: that a run exists on a shard, and the keys of its outputs there."""
    return f"shoal:{{{tag}}}:shard"


def sharded_output(tag: str, token: str) -> str:
    """String: an output on a shard. Each time that one is saved it has another token."""
    return f"shoal:{{{tag}}}:shard:{token}"


def parts(run: RunId) -> str:
    """Hash: the plan, a part for each worker, or a common one without a name."""
    return f"shoal:{{{run}}}:parts"


def given(run: RunId) -> str:
    """Hash: what flexible workers are started with."""
    return f"shoal:{{{run}}}:given"


def leases(run: RunId) -> str:
    """Hash: until when each worker that was started counts as alive, in the server's time."""
    return f"shoal:{{{run}}}:leases"


def progress(run: RunId) -> str:
    """Hash: how many tasks each worker has executed."""
    return f"shoal:{{{run}}}:progress"


def mailbox(run: RunId, name: str) -> str:
    """Stream: the messages to a worker, or to the client."""
    return f"shoal:{{{run}}}:mailbox:{name}"


def farm(run: RunId) -> str:
    """How the keys of a farm's queues begin; `farmscripts.py` tells what follows."""
    return f"shoal:{{{run}}}:farm:"


def reports(run: RunId) -> str:
    """Channel: which tasks are done, for the central schedulers of `experiments`."""
    return f"shoal:{{{run}}}:reports"


def signed_output(name: str) -> str:
    """What an output or a large constant is signed as, wherever it is kept."""
    return f"output of {name!r}"


def signed_mark(task: str, producer: str) -> str:
    """What goes with a producer's mark of a task is signed as."""
    return f"mark of {task!r} by {producer!r}"


def signed_announcement(task: str) -> str:
    """What tells that a task's output is saved is signed as."""
    return f"announcement of {task!r}"


def signed_inputs(worker: str) -> str:
    """What a flexible worker is started with is signed as."""
    return f"inputs of {worker!r}"


def signed_failure(task: str) -> str:
    """What a task failed with is signed as."""
    return f"failure of {task!r}"


def signed_function(stage: int) -> str:
    """What a stage of a farm calls is signed as."""
    return f"function of stage {stage}"


def signed_value(task: str, stage: int) -> str:
    """What a farm's task has become before a stage is signed as."""
    return f"value of task {task!r} before stage {stage}"


def shared_part(content: str) -> str:
    """The file in shared memory that has the part of all workers, by its content."""
    return f"part of all:{content}"


SIGNED_PART = "part of a plan"
"""What each worker's part of a plan is signed as; whose it is stands in it."""


_HISTORY = "shoal:{history-1}"
"""The number is that of the layout."""


def history_runs() -> str:
    """Sorted set: the runs of the past, by when they started."""
    return f"{_HISTORY}:runs"


def history_ids() -> str:
    """Sorted set: the runs of the past, by their ids."""
    return f"{_HISTORY}:ids"


def history_names() -> str:
    """Sorted set: the names of workflows, by when the latest run of each started."""
    return f"{_HISTORY}:names"


def history_run(run: str) -> str:
    """Hash: all that is kept of a run of the past."""
    return f"{_HISTORY}:run:{run}"


def history_named(name: str) -> str:
    """Sorted set: the runs of a workflow name, by when they started."""
    return f"{_HISTORY}:named:{quote(name, safe='')}"


def history_shapes(name: str) -> str:
    """Sorted set: the shapes and resources of a workflow name, by how many runs have them."""
    return f"{history_named(name)}:shapes"


def history_shape(name: str, shape: str) -> str:
    """Sorted set: the runs of a workflow name that have a shape, by when they started."""
    return f"{history_named(name)}:shape:{shape}"


_CACHE = "shoal:{cache-1}"
"""The number is that of the layout."""


def cache_entry(name: str) -> str:
    """String: an output that is kept across runs."""
    return f"{_CACHE}:entry:{name}"


def cache_used() -> str:
    """Sorted set: the outputs that are kept across runs, by when they were last used."""
    return f"{_CACHE}:used"


def cache_sizes() -> str:
    """Hash: the size of each output that is kept across runs."""
    return f"{_CACHE}:sizes"


def cache_nbytes() -> str:
    """Number: the sum of these sizes."""
    return f"{_CACHE}:nbytes"
