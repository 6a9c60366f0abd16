// SPDX-License-Identifier: Apache-2.0
// A program that is an OMPT tool itself.
#include <stddef.h>

typedef struct {
  int (*initialize)(void *, int, void *);
  void (*finalize)(void *);
  unsigned long data;
} result;

static int begin(void *lookup, int device, void *data) { return lookup != NULL && device >= 0 && data != NULL; }
static void end(void *data) { (void)data; }

__attribute__((visibility("default"))) result *ompt_start_tool(unsigned version, const char *runtime) {
  static result made = {begin, end, 0};
  return version != 0 && runtime != NULL ? &made : NULL;
}

int main(void) {
  int x = 0;
#pragma omp target map(tofrom : x)
  x++;
  return x - 1;
}
