"""The decode loop, and the state of one call."""
