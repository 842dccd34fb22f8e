"""The store that workers coordinate through, and how values become bytes."""
