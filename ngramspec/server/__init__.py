"""A code-completion server for one machine: ``ngramspec serve``.

``app`` makes the FastAPI application. ``engine`` runs the model in one thread, one forward a turn.
"""
