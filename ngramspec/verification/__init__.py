"""Which tokens the target says, and which drafted ones they accept."""
