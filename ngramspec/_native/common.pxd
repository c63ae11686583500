"""Shared by the structures: token input, array growth that keeps the old data, and hashes.

The hashes have a salt, so that users cannot choose tokens that collide. A context's key is XXH64 of
its tokens, with every eight bytes XORed with the salt, seeded with the n-gram's order XOR the salt.
With salt 0 it equals ``xxhash.xxh64_intdigest``. The salt is applied to every lane, not only to the
seed, because contexts that collide under any seed can be computed. A context has at most seven
tokens (28 bytes), so only the algorithm's path for inputs under 32 bytes is needed. The token is
read as a machine integer: little-endian machines only.
"""

from libc.stdint cimport int32_t, uint32_t, uint64_t
from libc.stdlib cimport realloc

cdef extern from *:
    """
    #define NGS_ROTL(x, r) (((x) << (r)) | ((x) >> (64 - (r))))
    """
    const uint64_t P1 "0x9E3779B185EBCA87ULL"
    const uint64_t P2 "0xC2B2AE3D27D4EB4FULL"
    const uint64_t P3 "0x165667B19E3779F9ULL"
    const uint64_t P4 "0x85EBCA77C2B2AE63ULL"
    const uint64_t P5 "0x27D4EB2F165667C5ULL"
    uint64_t rotl "NGS_ROTL" (uint64_t x, int r) nogil
    void prefetch_line "__builtin_prefetch" (const void* p) nogil

cdef enum:
    NONE = -1            # no index: end of a list, no state, no bucket
    MAX_TOKENS = 1 << 30  # positions and ids share int32 with flags
    MAX_DRAFT = 1 << 16  # tokens per draft

cdef uint64_t process_salt() noexcept nogil
cdef void* array_data(object array, int dtype, Py_ssize_t* n) noexcept
cdef const int32_t* tokens_of(object tokens, Py_ssize_t* n, str name=*) except NULL
cdef const float* floats_of(object floats, Py_ssize_t* n, str name) except NULL
cdef int check_ids(const int32_t* tokens, Py_ssize_t n) except -1
cdef int gamma_of(Py_ssize_t gamma) except -1


cdef inline int index_of(const int32_t* tokens, int n, int32_t token) noexcept nogil:
    """Index of the first of ``n`` tokens that is ``token``, or NONE."""
    cdef int i
    for i in range(n):
        if tokens[i] == token:
            return i
    return NONE


cdef inline int reserve(
    void** array, Py_ssize_t* capacity, Py_ssize_t needed, size_t width
) noexcept nogil:
    """Make room for ``needed`` elements of ``width`` bytes: 0, or -1 with the array unchanged."""
    cdef Py_ssize_t grown
    cdef void* moved
    if needed <= capacity[0]:
        return 0
    grown = capacity[0] + (capacity[0] >> 1) + 16
    if grown < needed:
        grown = needed
    moved = realloc(array[0], <size_t>grown * width)
    if moved == NULL:
        return -1
    array[0] = moved
    capacity[0] = grown
    return 0


cdef inline uint64_t scatter(uint64_t x) noexcept nogil:
    """The hash of a number that was XORed with a salt: XXH64's last rounds, a bijection.

    Two rounds are needed: after one multiplication, a flood still collides under some salts in a
    thousand.
    """
    x *= P2
    x = (x ^ (x >> 29)) * P3
    return x ^ (x >> 32)


cdef inline uint64_t xxh64(
    const int32_t* tokens, int n, uint64_t seed, uint64_t salt
) noexcept nogil:
    """Hash ``n`` <= 7 tokens with ``seed`` (the n-gram's order) under ``salt``."""
    cdef uint64_t h = (seed ^ salt) + P5 + <uint64_t>(4 * n)
    cdef uint64_t lane
    cdef int i = 0
    while i + 2 <= n:  # two tokens form one eight-byte lane
        lane = <uint64_t><uint32_t>tokens[i] | (<uint64_t><uint32_t>tokens[i + 1] << 32)
        h ^= rotl((lane ^ salt) * P2, 31) * P1
        h = rotl(h, 27) * P1 + P4
        i += 2
    if i < n:
        h ^= <uint64_t>(<uint32_t>tokens[i] ^ <uint32_t>salt) * P1
        h = rotl(h, 23) * P2 + P3
    return scatter(h ^ (h >> 33))


cdef class TokenStructure:
    cdef Py_ssize_t n           # tokens taken so far
    cdef bint busy              # an operation is running without the GIL
    cdef str name               # in errors

    cdef int append(self, int32_t token) noexcept nogil
    cdef inline int idle(self) except -1:
        """Raise a RuntimeError while an operation runs in another thread."""
        if self.busy:
            raise RuntimeError(f"this {self.name} is being used by another thread")
        return 0

    cdef inline int enter(self) except -1:
        """Begin an operation without the GIL; it ends with ``busy`` = False."""
        self.idle()
        self.busy = True
        return 0
