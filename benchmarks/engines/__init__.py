"""Benchmarks of serving engines. They need the engine, and no torch beyond the engine's own."""
