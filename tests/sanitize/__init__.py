"""The tests of the native structures under sanitizers, for ``make sanitize``."""
