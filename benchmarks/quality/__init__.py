"""How good plans are, in simulation: Shoal's planners, published ones, and a lower bound."""
