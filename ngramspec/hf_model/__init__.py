"""The model: its forward, its cache, and what it cannot do."""
