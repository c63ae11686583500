"""THE loop over steps, and one call's state."""
