"""mlx-lm's adapter where mlx-lm is not installed; its other tests are in ``live``."""

from __future__ import annotations

import subprocess
import sys


def test_without_mlx_lm_the_error_says_what_to_install():
    code = """
import sys
sys.modules["mlx"] = sys.modules["torch"] = sys.modules["transformers"] = None
try:
    import ngramspec.engines.mlx_lm
except ImportError as error:
    assert "needs mlx-lm: pip install mlx-lm" in str(error), error
else:
    sys.exit("it was imported")
"""
    subprocess.run([sys.executable, "-c", code], check=True)
