# SPDX-License-Identifier: Apache-2.0


cdef class Turn:
    cdef object __weakref__
    cdef object python
    cdef object event  # weakly
