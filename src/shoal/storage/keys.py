"""Every key name, in one place. A run's keys share a hash tag, so a cluster keeps them together."""

from shoal.types import RunId

CLIENT = "client"
"""The mailbox of whoever waits for the run; no worker has that name."""


def state(run: RunId) -> str:
    """Hash: that the run exists, who may start each worker, and each one's epoch."""
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


def staged(run: RunId, token: str) -> str:
    """String: a large output on its way, which the store may still refuse."""
    return f"shoal:{{{run}}}:staged:{token}"


def parts(run: RunId) -> str:
    """Hash: the plan, a part for each worker."""
    return f"shoal:{{{run}}}:parts"


def progress(run: RunId) -> str:
    """Hash: how many tasks each worker has executed."""
    return f"shoal:{{{run}}}:progress"


def mailbox(run: RunId, name: str) -> str:
    """Stream: the messages to a worker, or to the client."""
    return f"shoal:{{{run}}}:mailbox:{name}"
