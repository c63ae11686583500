"""Model folders that speculate by themselves."""
