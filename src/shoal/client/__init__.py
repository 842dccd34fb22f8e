"""The client: a run from its start to its result, and what a session keeps of it."""
