"""Closed forms of speculative decoding from alpha, gamma and costs. NumPy only.

``acceptance``: how often a drafted token is accepted; ``walltime``: how much faster it is.
"""
