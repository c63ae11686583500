"""Differential fuzzing of whole calls: random models, options and drafters against plain
``generate``. ``make fuzz`` runs it; CONTRIBUTING.md says how to read and keep what it finds."""
