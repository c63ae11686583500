"""The target's tokens, and which drafted tokens they accept."""
