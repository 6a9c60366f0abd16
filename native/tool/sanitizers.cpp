// SPDX-License-Identifier: Apache-2.0
// An address sanitizer that is a shared library, as gcc's is, ends a program in which another library was loaded first,
// because that one's functions could hide its own. Those of this library call the next ones.

#pragma GCC visibility push(default)
extern "C" {

/// Asked by the runtime, unless the program itself defines it. Called before any constructor has run.
char const* __asan_default_options() { return "verify_asan_link_order=0"; }
}
#pragma GCC visibility pop
