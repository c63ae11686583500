"""Bounds of a JSON text's content before parsing, in one pass over its bytes without the GIL."""

from libc.stdint cimport uint8_t


cdef (Py_ssize_t, Py_ssize_t, Py_ssize_t, Py_ssize_t) shape_of(
    const uint8_t[::1] text
) noexcept nogil:
    """Commas, opening brackets and colons outside strings; the longest run of digits."""
    cdef Py_ssize_t i = 0, commas = 0, opened = 0, colons = 0, size = text.shape[0]
    cdef Py_ssize_t digits = 0, longest = 0
    cdef bint inside = False
    while i < size:
        if inside:
            if text[i] == c"\\":
                i += 1  # the next byte is escaped and does not end the string
            elif text[i] == c'"':
                inside = False
        elif c"0" <= text[i] <= c"9":
            digits += 1
            longest = max(longest, digits)
            i += 1
            continue
        elif text[i] == c'"':
            inside = True
        elif text[i] == c",":
            commas += 1
        elif text[i] == c"[" or text[i] == c"{":
            opened += 1
        elif text[i] == c":":
            colons += 1
        digits = 0
        i += 1
    return commas, opened, colons, longest


def json_shape(const uint8_t[::1] text not None):
    """Bound what a parser would create from a JSON text.

    A parser stops at the first error, so the bounds also hold for text that is not valid JSON.

    Args:
        text: uint8 (n,), in UTF-8.

    Returns:
        An upper bound of the number of values, including arrays and objects; the number of arrays
        and objects; the number of members of objects; and the longest run of digits.
    """
    cdef (Py_ssize_t, Py_ssize_t, Py_ssize_t, Py_ssize_t) found
    with nogil:
        found = shape_of(text)
    return found[0] + found[1] + 1, found[1], found[2], found[3]
