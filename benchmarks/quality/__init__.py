"""Compare simulated plans of Shoal's planners with published schedulers and a lower bound."""
