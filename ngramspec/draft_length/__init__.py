"""How many tokens to draft, by what forwards cost."""
