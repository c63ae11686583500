/* Allocations that fail when told to. Only the builds of `make sanitize` include this, before all
   else; each extension has counters of its own, which failures.py finds by name. */
#include <stdlib.h>

long ngramspec_fail_after = -1; /* allocations that succeed before some fail; negative: all do */
long ngramspec_fail_times = 0;  /* how many fail then */
long ngramspec_failed = 0;      /* how many did */

static inline int ngs_fails(void) {
    if (ngramspec_fail_after < 0) return 0;
    if (ngramspec_fail_after > 0) {
        ngramspec_fail_after--;
        return 0;
    }
    if (--ngramspec_fail_times <= 0) ngramspec_fail_after = -1;
    ngramspec_failed++;
    return 1;
}

static inline void *ngs_malloc(size_t size) { return ngs_fails() ? NULL : malloc(size); }
static inline void *ngs_calloc(size_t n, size_t size) { return ngs_fails() ? NULL : calloc(n, size); }
static inline void *ngs_realloc(void *p, size_t size) { return ngs_fails() ? NULL : realloc(p, size); }
static inline int ngs_memalign(void **p, size_t alignment, size_t size) {
    return ngs_fails() ? 12 : posix_memalign(p, alignment, size); /* ENOMEM */
}

#define malloc(size) ngs_malloc(size)
#define calloc(n, size) ngs_calloc(n, size)
#define realloc(p, size) ngs_realloc(p, size)
#define posix_memalign(p, alignment, size) ngs_memalign(p, alignment, size)
