"""Sampling of the target's tokens, and the verification of draft tokens."""
