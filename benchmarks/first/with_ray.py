"""Compute a first result with Ray."""

import ray


@ray.remote
def one() -> int:
    """Return a number, as the smallest task."""
    return 1


if __name__ == "__main__":
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    print(ray.get(one.remote()), flush=True)
