# SPDX-License-Identifier: Apache-2.0
# find_package(pagetable): the header-only target pagetable::pagetable.
if(NOT TARGET pagetable::pagetable)
  find_package(Threads REQUIRED)
  add_library(pagetable::pagetable INTERFACE IMPORTED)
  set_target_properties(pagetable::pagetable PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${CMAKE_CURRENT_LIST_DIR}/../include"
    INTERFACE_COMPILE_FEATURES cxx_std_20
    INTERFACE_LINK_LIBRARIES Threads::Threads)
endif()
