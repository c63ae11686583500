"""A code-completion server for one machine: ``ngramspec serve``.

``app`` makes the FastAPI application; ``engine`` runs the model in one thread, in turns (``job``,
``scheduler``), over a pool of key-value caches (``kv_pool``).
"""
