"""The best nodes of a draft so far, in order of reach: best-first search under a node budget.

Invariant: no child has more reach than its parent. The nodes up to the one being expanded therefore
keep their places in the order. Costs: an insertion O(limit) at worst, finding a child O(nodes after
the parent). Memory: 32 bytes per node. The owner prevents concurrent use.
"""

from libc.stdint cimport int32_t

cdef extern from *:
    """
    #define NGS_MORE 1.0001f
    """
    const float MORE "NGS_MORE"     # reaches within this factor are ties, whatever the rounding

cdef struct Node:       # a token that may be drafted
    int32_t token
    float p             # P(it is next)
    int32_t parent      # its place in the order, or NONE
    int32_t at          # index of the position that it follows
    int32_t position    # index of the position after it; NONE: not expanded
    int32_t source

cdef struct Ranked:
    float reach         # P(the path up to and including the node)
    int32_t node

cdef struct Frontier:
    Node* nodes
    Ranked* order       # by reach; on near ties, the node offered first
    Py_ssize_t node_cap, order_cap
    int limit           # maximum number of nodes
    int n


cdef inline Node* insert(Frontier* f, float reach) noexcept nogil:
    """A new node to be filled in; NULL if it is not among the ``limit`` best."""
    cdef int i = f.n
    cdef int32_t node = i
    if i < f.limit:
        f.n += 1
    elif i and f.order[i - 1].reach * MORE < reach:
        i -= 1
        node = f.order[i].node
    else:
        return NULL
    while i and f.order[i - 1].reach * MORE < reach:
        f.order[i] = f.order[i - 1]
        i -= 1
    f.order[i].reach = reach
    f.order[i].node = node
    return &f.nodes[node]


cdef inline Node* ranked(const Frontier* f, int i) noexcept nogil:
    """The ``i``-th node in order."""
    return &f.nodes[f.order[i].node]


cdef inline int child(const Frontier* f, int parent, int32_t token) noexcept nogil:
    """Place in the order of the child of a node with ``token``, or -1."""
    cdef int i
    for i in range(parent + 1, f.n):
        if ranked(f, i).parent == parent and ranked(f, i).token == token:
            return i
    return -1
