"""Beam search under speculation."""
