# SPDX-License-Identifier: Apache-2.0


cdef class HostCallback:
    cdef object __weakref__
    cdef object python
    cdef public object queue  # type: VendorQueue
    cdef object event  # a weak reference
