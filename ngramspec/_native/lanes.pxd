"""Comparing the tokens of all candidates with a few others, four at a time and without branches.

Arrays have room for a multiple of four; entries after the last candidate are meaningless.
"""

from libc.stdint cimport int16_t, int32_t

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    typedef int32_t ngs_four __attribute__((vector_size(16)));
    typedef int16_t ngs_short __attribute__((vector_size(8)));
    static inline ngs_four ngs_load(const int32_t* from) {
        ngs_four v;
        memcpy(&v, from, sizeof v);
        return v;
    }
    static inline void ngs_store(int32_t* into, ngs_four v) { memcpy(into, &v, sizeof v); }
    static inline void ngs_store_short(int16_t* into, ngs_four v) {
        ngs_short narrow = __builtin_convertvector(v, ngs_short);
        memcpy(into, &narrow, sizeof narrow);
    }
    static inline void ngs_set_cells(
        const int32_t* token, int n, int32_t of, int cell, int other, int16_t* into
    ) {
        for (int i = 0; i < n; i += 4)
            ngs_store_short(into + i, other + ((ngs_load(token + i) == of) & (cell - other)));
    }
    static inline void ngs_set_cells_of_three(
        const int32_t* token, int n, const int32_t* of, const int* cell, const int* mark,
        int other, int16_t* into, int32_t* marked
    ) {
        int x = cell[0] - other, y = cell[1] - other, z = cell[2] - other;
        for (int i = 0; i < n; i += 4) {
            ngs_four t = ngs_load(token + i), a = t == of[0], b = t == of[1], c = t == of[2];
            ngs_store_short(into + i, other + (a & x) + (b & y) + (c & z));
            ngs_store(marked + i, ngs_load(marked + i) | (a & mark[0]) | (b & mark[1])
                | (c & mark[2]));
        }
    }
    static inline void ngs_set_where(
        const int32_t* token, int n, int32_t of, int value, int32_t* into
    ) {
        for (int i = 0; i < n; i += 4) {
            ngs_four same = ngs_load(token + i) == of;
            ngs_store(into + i, (same & value) | (~same & ngs_load(into + i)));
        }
    }
    """
    # Each candidate's cell: ``cell`` for the token ``of``, ``other`` for the others.
    void set_cells "ngs_set_cells" (
        const int32_t* token, int n, int32_t of, int cell, int other, int16_t* into
    ) noexcept nogil
    # The same for three different tokens; also marks candidates that equal one with a mark of 1.
    void set_cells_of_three "ngs_set_cells_of_three" (
        const int32_t* token, int n, const int32_t* of, const int* cell, const int* mark,
        int other, int16_t* into, int32_t* marked
    ) noexcept nogil
    # Set the value of the candidate ``of``, if it is a candidate.
    void set_where "ngs_set_where" (
        const int32_t* token, int n, int32_t of, int value, int32_t* into
    ) noexcept nogil
