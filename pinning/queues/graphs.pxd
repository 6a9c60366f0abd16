# SPDX-License-Identifier: Apache-2.0
from pinning.plugin.native cimport VendorQueue


cdef keep_with_graph(VendorQueue* queue, object work, tuple kept)
