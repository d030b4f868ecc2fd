// What the programs of this folder share: the table by which libgpupool_watch.so is asked who holds how much, and
// checks.

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long Address;
typedef struct { int kind, handle_kind, location_kind, location; void *meta_data; unsigned char flags[8]; } Properties;

typedef uint64_t (*GiveWay)(int device, uint64_t bytes);
typedef uint64_t (*Reserved)(int device);
typedef void (*Tell)(void *, const char *name, const char *path, uint64_t bytes, uint64_t peak, uint64_t count);
typedef struct {
  size_t size;
  int (*join)(GiveWay, Reserved);
  void (*holders)(int device, Tell, void *);
  uint64_t (*process_bytes)(int device);
} Table;

#define CHECK(condition, ...) \
  do { \
    if (condition) break; \
    fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition); \
    fprintf(stderr, __VA_ARGS__); \
    fprintf(stderr, "\n"); \
    exit(1); \
  } while (0)

static inline uint64_t has_nothing(int device) { return 0 * (uint64_t)device; }

static inline const Table *table(void) {
  const Table *found = (const Table *)dlsym(RTLD_DEFAULT, "gpupool_watch");
  CHECK(found, "the program was not started with libgpupool_watch.so");
  return found;
}

// What one file holds of a device, or all of them.
typedef struct { const char *name; uint64_t bytes, peak, count; } Held;

static inline void add_held(
    void *sum, const char *name, const char *path, uint64_t bytes, uint64_t peak, uint64_t count) {
  Held *held = (Held *)sum;
  (void)path;
  if (held->name && strcmp(held->name, name)) return;
  held->bytes += bytes;
  held->peak += peak;
  held->count += count;
}

static inline Held held_by(const char *name, int device) {
  Held held = {name, 0, 0, 0};
  table()->holders(device, add_held, &held);
  return held;
}

#define HOLDS(name, device, wanted_bytes, wanted_count) \
  do { \
    Held held = held_by(name, device); \
    CHECK(held.bytes == (uint64_t)(wanted_bytes) && held.count == (uint64_t)(wanted_count), \
          "%llu bytes in %llu are counted", (unsigned long long)held.bytes, (unsigned long long)held.count); \
  } while (0)

// A program's cases, by the name of each.
typedef struct { const char *name; void (*run)(void); } Case;
#define CASE(name) {#name, name}

static inline int run_case(const Case *cases, size_t many, int count, char **arguments) {
  CHECK(count > 1, "for which case?");
  for (size_t index = 0; index < many; index++)
    if (!strcmp(cases[index].name, arguments[1])) {
      cases[index].run();
      return 0;
    }
  fprintf(stderr, "no case %s\n", arguments[1]);
  return 2;
}
