"""These tests need an environment of their own: ``make test-frameworks``."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("trl") else ["test_*.py"]
