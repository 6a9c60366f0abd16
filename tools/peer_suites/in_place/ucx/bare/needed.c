// SPDX-License-Identifier: Apache-2.0
// The functions that UCX's page table needs from the rest of its library.
#include <stdarg.h>
#include <stdlib.h>

char ucs_global_opts[1 << 16];  // the size of its options is not known here; a log level of 0 is "fatal"

void* ucs_calloc(size_t count, size_t size, char const* name) { return calloc(count, size); }
void ucs_free(void* memory) { free(memory); }
void ucs_log_dispatch(char const* file, unsigned line, char const* function, int level, void* config, char const* format, ...) {}
void ucs_fatal_error_format(char const* file, unsigned line, char const* function, char const* format, ...) { abort(); }
