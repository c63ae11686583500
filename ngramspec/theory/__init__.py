"""Closed forms of speculative decoding from alpha, gamma and costs. NumPy only.

One file for each question: ``acceptance`` (how often is a drafted token accepted), ``walltime``
(how much faster), ``operations`` (how much more arithmetic, how much less memory traffic),
``trees`` (expected tokens of a tree, the best tree), ``tables`` (the published tables).
"""
