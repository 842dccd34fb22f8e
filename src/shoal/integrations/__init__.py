"""Other libraries' entry points: what runs their work on Shoal."""
