"""Measuring drafters without a model: replay of recorded outputs, time and memory; and peers."""
