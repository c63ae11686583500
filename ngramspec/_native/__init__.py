"""Native structures: Cython over flat C arrays, NumPy at the boundary, nothing of ours imported."""
