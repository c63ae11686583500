"""Token input shared by the native structures."""


cdef const int32_t[::1] token_view(object tokens):
    """A view of a one-dimensional contiguous int32 array; a TypeError that names what came instead."""
    try:
        return tokens
    except (TypeError, ValueError, BufferError):
        dtype = getattr(tokens, "dtype", type(tokens).__name__)
        shape = getattr(tokens, "shape", None)
        raise TypeError(
            f"tokens must be a contiguous one-dimensional int32 array, got {dtype}"
            + (f" of shape {tuple(shape)}" if shape is not None else "")
        ) from None


cdef object raise_negative(const int32_t[::1] tokens, Py_ssize_t index):
    raise ValueError(f"token ids must be >= 0, got {tokens[index]} at index {index}")
