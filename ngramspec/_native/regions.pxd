"""Which parts of a store recently continued like the text: counts that fade, by region.

A region is 2048 positions of a store. The table has a fixed size: if two regions have the same
place in it, the one with more copied tokens stays.
"""

from libc.stdint cimport int64_t, uint64_t

cdef enum:
    REGION_BITS = 11    # logarithm of the positions in a region
    REGIONS = 256
    FADING = 16         # tokens after which all counts fade once
    FULL_LENGTH = 4     # matches of at least this length count fully

cdef struct Regions:
    int64_t at[REGIONS]         # the number of each region
    float copied[REGIONS]       # fading count of next tokens that were the same as in the text
    int tokens                  # tokens since the counts last faded


cdef inline int place_of(int64_t region) noexcept nogil:
    """A region's place in the table."""
    return <int>((<uint64_t>region * <uint64_t>0x9E3779B97F4A7C15) >> 56)


cdef inline float copied_from(const Regions* r, int64_t position) noexcept nogil:
    """The fading count of a position's region: next tokens that were the same as in the text."""
    cdef int64_t region = position >> REGION_BITS
    cdef int i = place_of(region)
    return r.copied[i] if r.at[i] == region else 0


cdef inline void count_copied(Regions* r, int64_t position, float n) noexcept nogil:
    """Add to the count of a position's region."""
    cdef int64_t region = position >> REGION_BITS
    cdef int i = place_of(region)
    if r.at[i] == region:
        r.copied[i] += n
    elif r.copied[i] < n:
        r.at[i] = region
        r.copied[i] = n


cdef inline void fade(Regions* r, int n) noexcept nogil:
    """Let the counts fade over ``n`` tokens."""
    cdef int i
    r.tokens += n
    while r.tokens >= FADING:
        r.tokens -= FADING
        for i in range(REGIONS):
            r.copied[i] *= <float>0.9
