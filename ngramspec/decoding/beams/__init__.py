"""Beam search with speculation."""
