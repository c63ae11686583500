"""Random operations on the native structures, for ``make sanitize``."""
