"""Pure: plans, the worker's state machine, and the simulator that runs it on virtual time."""
