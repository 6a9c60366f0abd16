// SPDX-License-Identifier: Apache-2.0
// What dlsym returns: built with -DLIBRARY as one of two libraries that define `layer`, of which the first looks up the
// next one's; otherwise as a program linked to both. Prints what it finds, which is the same whatever is loaded before.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

#ifdef LIBRARY
char const *layer(void);
char const *layer(void) {
    char const *(*const next)(void) = (char const *(*)(void))dlsym(RTLD_NEXT, "layer");
    static char text[64];
    snprintf(text, sizeof text, "%s, then %s", LIBRARY, next == NULL ? "nothing" : next());
    return text;
}

void *of_scope(char const *name);
void *of_scope(char const *name) { return dlsym(RTLD_DEFAULT, name); }
#else
extern char const *layer(void);
extern void *of_scope(char const *name);

static void tell(char const *what, void *found) {
    char const *const error = dlerror();
    printf("%s: %s, %s\n", what, found != NULL ? "found" : "not found", error != NULL ? "an error" : "no error");
}

int main(void) {
    printf("%s\n", layer());
    char const *const names[] = {"puts", "cuMemcpyHtoD_v2", "cuMemcpy", "cuGetProcAddress_v2", "cu", "", "no_such_name"};
    void *const program = dlopen(NULL, RTLD_NOW), *const c = dlopen("libc.so.6", RTLD_NOW);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char const *const name = names[i];
        printf("%s\n", name);
        tell("default", dlsym(RTLD_DEFAULT, name));
        tell("next", dlsym(RTLD_NEXT, name));
        tell("program", dlsym(program, name));
        tell("libc", dlsym(c, name));
        tell("in a library", of_scope(name));
    }
    return 0;
}
#endif
