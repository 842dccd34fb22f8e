"""Platforms that run workers: the protocol, and the local gateway with its sandboxes."""
