"""The fault laboratory: real runs on a real gateway and store while faults are injected."""
