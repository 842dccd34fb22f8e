"""Designs with a central scheduler, for comparison with Shoal's decentralised workers."""
