"""A code-completion server for one machine: ``ngramspec serve``.

``app`` makes the FastAPI application. ``engine`` runs the model in one thread: ``scheduler``
chooses the jobs (``job``) of each turn, and ``kv_pool`` keeps their key-value caches.
"""
