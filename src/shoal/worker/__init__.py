"""Workers: the driver of the worker machine in real time."""
