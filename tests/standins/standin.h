// SPDX-License-Identifier: Apache-2.0
//
// Shared by all stand-in drivers. Include it once, after the vendor's own header:
//
//     #define STANDIN "CUDA"  // the variable STANDIN_CUDA configures it at load
//     #include <cuda.h>
//     #include "standin.h"
//
// and define the vendor's own options, which `standin_option` gets one by one:
//
//     static bool standin_option(const char *entry) {
//         if (!entry) read_only_supported = true;  // NULL: a new configuration begins, back to the defaults
//         else if (!strcmp(entry, "no_read_only")) read_only_supported = false;
//         else return false;  // unknown: the process aborts
//         return true;
//     }
//
// Every function of the vendor begins with `enter(__func__, format, arguments...)`, which logs and delays the call, and
// returns the code with which it must fail, or 0:
//
//     #define ENTER(...) do { int code = enter(__func__, __VA_ARGS__); if (code) return code; } while (0)
//     hsa_status_t hsa_amd_memory_unlock(void *host_ptr) {
//         ENTER("%p", host_ptr);
//         REQUIRE(host_ptr, HSA_STATUS_ERROR_INVALID_ARGUMENT);
//         bool found = give_back((uintptr_t)host_ptr, REGISTRATION, REGISTRATION);
//         return found ? HSA_STATUS_SUCCESS : ...;
//     }
//
// What the vendor checks before anything else (initialised? a context?) belongs in its ENTER, after `enter`.
// Functions marked (mutex) are called with `mutex` held.
//
// A configuration consists of entries separated by ';':
//   log=PATH              append one line for each call: the function and its arguments, before the call takes effect
//   newlog=PATH           the same, after emptying the file
//   fail=FUNCTION:N:CODE  the N-th call of FUNCTION, or of any function for '*', returns CODE and has no effect
//   delay=FUNCTION:MS     each call of FUNCTION takes MS longer, or until the next standin_configure
//   lost=FUNCTION:N:CODE  the N-th call of FUNCTION fails with CODE, and then every call that checks `lost`; FUNCTION
//                         "work": a piece of work in a stream, whose failure is reported later. Each of these functions
//                         of the vendor calls `lose(__func__)` and then fails with `lost`, if that is set.
//   and the vendor's own

#ifndef STANDIN_H
#define STANDIN_H

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

// Device addresses differ from host addresses in their top bits, so that a mix-up is caught: REGISTERED is added to the
// host address of registered memory, DEVICE to that of device memory. Both lie above every address of a process.
#define REGISTERED ((uintptr_t)1 << 47)
#define DEVICE ((uintptr_t)1 << 48)

#define REQUIRE(condition, code) \
    do {                         \
        if (!(condition)) return code; \
    } while (0)

enum { MAX_RULES = 16, PAGE = 4096 };

// Registrations and the vendor's own host memory are page-locked, all others are not.
enum { REGISTRATION, HOST_ALLOCATION, DEVICE_ALLOCATION, SHARED_ALLOCATION };

struct range {
    int kind;
    uintptr_t host, shift;  // the device address of a byte is its host address plus shift
    size_t size;
    unsigned flags;  // for the vendor
    struct range *next;
};

struct rule {
    char function[64];
    int nth, code, milliseconds, seen;  // nth is 0 for a delay
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct range *ranges;
static struct rule rules[MAX_RULES];
static int rule_count, configuration;  // a change of `configuration` ends delays
static struct rule loss;  // when the device becomes lost
static _Atomic int lost;  // the code with which all later calls fail; 0: not lost
static pthread_cond_t progress = PTHREAD_COND_INITIALIZER;  // work was submitted or done, or the device was lost
static int log_file = -1;

// Numbers of live objects, with which the tests check that nothing is left.
static struct {
    int streams, events, signals;
} live;

static bool standin_option(const char *entry);

// ---- the controls of the tests ----

void standin_configure(const char *text);
size_t standin_registrations(uint64_t *pairs, size_t room);
size_t standin_live(const char *what);

void standin_configure(const char *text) {
    char *copy = strdup(text), *rest = copy, *entry;
    pthread_mutex_lock(&mutex);
    rule_count = 0;
    loss = (struct rule){0};
    lost = 0;
    standin_option(NULL);
    ++configuration;
    while ((entry = strsep(&rest, ";"))) {
        struct rule rule = {0};
        bool anew = !strncmp(entry, "newlog=", 7);  // in one step with the rules: other threads may call meanwhile
        if (anew || !strncmp(entry, "log=", 4)) {
            if (log_file >= 0) close(log_file);
            log_file = open(strchr(entry, '=') + 1, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | (anew ? O_TRUNC : 0), 0600);
        } else if (sscanf(entry, "fail=%63[^:]:%d:%d", rule.function, &rule.nth, &rule.code) == 3 ||
                   sscanf(entry, "delay=%63[^:]:%d", rule.function, &rule.milliseconds) == 2) {
            if (rule_count < MAX_RULES) rules[rule_count++] = rule;
        } else if (sscanf(entry, "lost=%63[^:]:%d:%d", rule.function, &rule.nth, &rule.code) == 3) {
            loss = rule;
        } else if (*entry && !standin_option(entry)) {
            fprintf(stderr, STANDIN " stand-in: cannot understand '%s'\n", entry);
            abort();
        }
    }
    pthread_mutex_unlock(&mutex);
    free(copy);
}

// Host address and size of each registration, in pairs; returns how many there are.
size_t standin_registrations(uint64_t *pairs, size_t room) {
    size_t count = 0;
    pthread_mutex_lock(&mutex);
    for (struct range *r = ranges; r; r = r->next) {
        if (r->kind != REGISTRATION) continue;
        if (count < room) pairs[2 * count] = r->host, pairs[2 * count + 1] = r->size;
        ++count;
    }
    pthread_mutex_unlock(&mutex);
    return count;
}

// How many "streams", "events", "signals" or "allocations" there are.
size_t standin_live(const char *what) {
    size_t count = 0;
    pthread_mutex_lock(&mutex);
    if (!strcmp(what, "streams")) count = live.streams;
    else if (!strcmp(what, "events")) count = live.events;
    else if (!strcmp(what, "signals")) count = live.signals;
    else for (struct range *r = ranges; r; r = r->next) count += r->kind != REGISTRATION;
    pthread_mutex_unlock(&mutex);
    return count;
}

__attribute__((constructor)) static void load(void) {
    const char *text = getenv("STANDIN_" STANDIN);
    if (text) standin_configure(text);
}

// ---- what every call does first ----

// The log has the name without a version at its end: cuMemAlloc for cuMemAlloc_v2.
__attribute__((format(printf, 2, 3))) static int enter(const char *symbol, const char *format, ...) {
    char line[512], function[64];
    snprintf(function, sizeof function, "%s", symbol);
    char *version = strstr(function, "_v");
    if (version && strspn(version + 2, "0123456789") == strlen(version + 2)) *version = 0;
    int length = snprintf(line, sizeof line, "%s ", function);
    va_list arguments;
    va_start(arguments, format);
    length += vsnprintf(line + length, sizeof line - length - 1, format, arguments);
    va_end(arguments);
    if (length > (int)sizeof line - 2) length = sizeof line - 2;
    line[length++] = '\n';

    int failure = 0, milliseconds = 0;
    pthread_mutex_lock(&mutex);
    int current = configuration;
    if (log_file >= 0 && write(log_file, line, length) != length) abort();
    for (struct rule *rule = rules; rule < rules + rule_count; ++rule) {
        if (strcmp(rule->function, function) && strcmp(rule->function, "*")) continue;
        if (rule->nth == 0) milliseconds += rule->milliseconds;
        else if (++rule->seen == rule->nth) failure = rule->code;
    }
    bool over = !milliseconds;
    pthread_mutex_unlock(&mutex);
    while (!over) {
        usleep(1000);
        pthread_mutex_lock(&mutex);
        over = --milliseconds <= 0 || configuration != current;
        pthread_mutex_unlock(&mutex);
    }
    return failure;
}

// Whether the device becomes lost now. The name may have a version at its end, as cuMemAlloc_v2 has.
static inline bool lose(const char *function) {
    size_t length = strlen(loss.function);
    if (!loss.nth || strncmp(function, loss.function, length) || (function[length] && function[length] != '_')) return false;
    pthread_mutex_lock(&mutex);
    bool now = ++loss.seen == loss.nth;
    if (now) {
        lost = loss.code;
        pthread_cond_broadcast(&progress);
    }
    pthread_mutex_unlock(&mutex);
    return now;
}

// ---- page locks ----

static inline uintptr_t page_start(uintptr_t address) { return address & -(uintptr_t)PAGE; }
static inline uintptr_t page_end(uintptr_t address) { return page_start(address + PAGE - 1); }

static inline bool page_locked(const struct range *r) { return r->kind <= HOST_ALLOCATION; }

// Lock pages; false if some are not mapped, which msync reports on Linux. If RLIMIT_MEMLOCK forbids it, they stay
// unlocked, without an error: no vendor's driver is bound by that limit. More than a machine may have stays unpopulated.
static inline bool lock_pages(uintptr_t host, size_t size) {
    uintptr_t start = page_start(host), length = page_end(host + size) - start;
    if (msync((void *)start, length, MS_ASYNC) && errno == ENOMEM) return false;
    if (mlock2((void *)start, length, length > ((size_t)1 << 30) ? MLOCK_ONFAULT : 0)) errno = 0;
    return true;
}

// (mutex) munlock does not nest, so pages that other ranges lock too are locked again. Memory that is gone is no error.
static inline void unlock_pages(uintptr_t host, size_t size) {
    uintptr_t start = page_start(host), end = page_end(host + size);
    munlock((void *)start, end - start);
    for (struct range *r = ranges; r; r = r->next) {
        uintptr_t low = page_start(r->host), high = page_end(r->host + r->size);
        if (low < start) low = start;
        if (high > end) high = end;
        if (page_locked(r) && low < high) lock_pages(low, high - low);
    }
}

// ---- ranges ----

// (mutex) The range of a host or a device address.
static inline struct range *holding(uintptr_t address) {
    for (struct range *r = ranges; r; r = r->next)
        if (address - r->host < r->size || address - (r->host + r->shift) < r->size) return r;
    return NULL;
}

// A copy of that range; of kind -1 if there is none.
static inline struct range range_at(uintptr_t address) {
    pthread_mutex_lock(&mutex);
    struct range *found = holding(address), copy = found ? *found : (struct range){.kind = -1};
    pthread_mutex_unlock(&mutex);
    return copy;
}

// (mutex) Whether a range of this kind overlaps these bytes of the host.
static inline bool overlapping(int kind, uintptr_t host, size_t size) {
    for (struct range *r = ranges; r; r = r->next)
        if (r->kind == kind && host < r->host + r->size && r->host < host + size) return true;
    return false;
}

// (mutex) Add a range; false if it must be page-locked and some of it is not mapped.
static inline bool add(int kind, uintptr_t host, uintptr_t shift, size_t size, unsigned flags) {
    struct range added = {kind, host, shift, size, flags, ranges};
    if (page_locked(&added) && !lock_pages(host, size)) return false;
    ranges = malloc(sizeof *ranges);
    *ranges = added;
    return true;
}

// Small memory of a device lies next to what was allocated before, as drivers place it: a copy of both is refused.
static struct block {
    char *start;
    size_t used;
    int live;
    struct block *next;
} *blocks;
enum { BLOCK = 2 << 20 };

// (mutex) Room for an allocation, of whole pages; NULL if there is none.
static inline void *make_room(int kind, size_t size) {
    if (kind != DEVICE_ALLOCATION || size > BLOCK / 8) return aligned_alloc(PAGE, size);
    if (!blocks || blocks->used + size > BLOCK) {
        struct block *fresh = malloc(sizeof *fresh);
        *fresh = (struct block){aligned_alloc(PAGE, BLOCK), 0, 0, blocks};
        blocks = fresh;
    }
    ++blocks->live;
    blocks->used += size;
    return blocks->start + blocks->used - size;
}

// (mutex)
static inline void give_room_back(uintptr_t host) {
    for (struct block **link = &blocks; *link; link = &(*link)->next) {
        struct block *block = *link;
        if (host - (uintptr_t)block->start >= BLOCK) continue;
        if (--block->live) return;
        *link = block->next;
        free(block->start);
        free(block);
        return;
    }
    free((void *)host);
}

// (mutex) Remove the range that begins at this device address, if it is of these kinds.
static inline bool discard(uintptr_t address, int first_kind, int last_kind) {
    for (struct range **link = &ranges; *link; link = &(*link)->next) {
        struct range *r = *link;
        if (r->host + r->shift != address || r->kind < first_kind || r->kind > last_kind) continue;
        *link = r->next;
        if (page_locked(r)) unlock_pages(r->host, r->size);
        if (r->kind != REGISTRATION) give_room_back(r->host);
        free(r);
        return true;
    }
    return false;
}

// `discard`, for callers without the mutex.
static inline bool give_back(uintptr_t address, int first_kind, int last_kind) {
    pthread_mutex_lock(&mutex);
    bool found = discard(address, first_kind, last_kind);
    pthread_mutex_unlock(&mutex);
    return found;
}

// Allocate the vendor's own memory; returns its device address, or 0.
static inline uintptr_t allocate(int kind, uintptr_t shift, size_t size, unsigned flags) {
    pthread_mutex_lock(&mutex);
    void *host = page_end(size) < size ? NULL : make_room(kind, page_end(size));
    if (host) add(kind, (uintptr_t)host, shift, size, flags);
    pthread_mutex_unlock(&mutex);
    return host ? (uintptr_t)host + shift : 0;
}

#endif
