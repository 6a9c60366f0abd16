# SPDX-License-Identifier: Apache-2.0
from pagetable.native cimport CPageTable, CRegion
from pagetable.table cimport PageTable, Region
