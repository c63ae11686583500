"""A code-completion server for one machine: ``ngramspec serve``.

``app`` makes the FastAPI application. ``engine`` runs the model in one thread, one forward a turn,
and ``kv_pool`` keeps the key-value caches of its jobs.
"""
