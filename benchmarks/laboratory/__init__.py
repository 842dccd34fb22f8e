"""The fault laboratory: real runs on a real gateway and store, while both are hurt."""
