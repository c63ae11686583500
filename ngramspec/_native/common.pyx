"""Token input shared by the native structures."""


cdef const int32_t[::1] token_view(object tokens, str name="tokens"):
    """View a contiguous one-dimensional int32 array, or raise a TypeError that says what came."""
    try:
        if tokens is not None:  # None would pass as a view of no memory
            return tokens
    except (TypeError, ValueError, BufferError):
        pass
    dtype = getattr(tokens, "dtype", type(tokens).__name__)
    shape = getattr(tokens, "shape", None)
    raise TypeError(
        f"{name} must be a contiguous one-dimensional int32 array, got {dtype}"
        + (f" of shape {tuple(shape)}" if shape is not None else "")
    )


cdef object raise_negative(const int32_t[::1] tokens, Py_ssize_t index):
    raise ValueError(f"token ids must be >= 0, got {tokens[index]} at index {index}")
