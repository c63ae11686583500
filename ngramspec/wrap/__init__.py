"""Model folders whose ``generate`` speculates."""
