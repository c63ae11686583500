"""The inputs of the target's forwards."""
