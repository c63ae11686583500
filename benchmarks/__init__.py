"""What only this project's developers measure: ``python -m benchmarks NAME``.

Each benchmark is a module with ``add_arguments(options)`` and ``run(arguments)``, which returns the
exit code. ``harness`` has what they share. ``results`` has the raw files of the docs' figures.
"""
