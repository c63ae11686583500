"""What forwards cost, assumed and then measured, and how many tokens to draft by that."""
