"""Drafting for inference engines: vLLM, SGLang, llama.cpp and TensorRT-LLM.

An engine's module reads its options with ``row_options.EngineOptions``, whose ``rows`` makes the
``Rows`` that draft for the engine's requests. The completion server has its own loop, in
``ngramspec.server``.
"""
