"""Planners: a workflow in, a plan out."""
