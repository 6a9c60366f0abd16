# SPDX-License-Identifier: Apache-2.0
from pinning.queues.event cimport Event


cdef class Copy(Event):
    cdef public object path
    cdef public object reason
