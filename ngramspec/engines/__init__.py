"""Drafting for inference engines: vLLM and llama.cpp.

An engine's module reads its options with ``row_options.EngineOptions``, whose ``rows`` makes the
``Rows`` that draft for the engine's requests. The completion server has its own loop, in
``ngramspec.server``.
"""
