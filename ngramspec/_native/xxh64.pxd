"""The hashes of the tables, with a salt, so that users cannot choose tokens that collide.

A context's key is XXH64 of its tokens, with every eight bytes XORed with the salt, seeded with the
n-gram's order XOR the salt. With salt 0 it equals ``xxhash.xxh64_intdigest``. The salt is applied
to every lane, not only to the seed, because contexts that collide under any seed can be computed.

A context has at most seven tokens (28 bytes), so only the algorithm's path for inputs under 32
bytes is needed. The token is read as a machine integer: little-endian machines only.
"""

from libc.stdint cimport int32_t, uint32_t, uint64_t

cdef extern from *:
    """
    #define NGS_P1 0x9E3779B185EBCA87ULL
    #define NGS_P2 0xC2B2AE3D27D4EB4FULL
    #define NGS_P3 0x165667B19E3779F9ULL
    #define NGS_P4 0x85EBCA77C2B2AE63ULL
    #define NGS_P5 0x27D4EB2F165667C5ULL
    #define NGS_ROTL(x, r) (((x) << (r)) | ((x) >> (64 - (r))))
    """
    const uint64_t P1 "NGS_P1"
    const uint64_t P2 "NGS_P2"
    const uint64_t P3 "NGS_P3"
    const uint64_t P4 "NGS_P4"
    const uint64_t P5 "NGS_P5"
    uint64_t rotl "NGS_ROTL" (uint64_t x, int r) nogil


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
