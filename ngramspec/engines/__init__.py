"""Drafting for inference engines: vLLM, llama.cpp and mlx-lm.

An engine's module reads its options with ``row_options.EngineOptions``, whose ``rows`` makes the
``Rows`` that draft for the engine's requests. ``mlx_lm`` takes a Speculator, and drives one ``Row``
in its own decode loop. The completion server is in ``ngramspec.server``.
"""
