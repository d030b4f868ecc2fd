// What the doubles share: every call is counted, can be made to fail, and is checked.
//
// FAKE_FAIL="name=code" makes a function answer a code, "name=code:2" its first two calls; commas part several. A call
// that no program may make (a dead handle, a pointer that nobody gave) prints what is wrong and aborts. FAKE_REPORT=1
// prints how often each function was called when the process ends, and double_calls() tells it to a test that is still
// running.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// What a double does with an answer before it gives it.
#ifndef ANSWER
#define ANSWER(status) (status)
#endif

typedef struct Count { const char *name; int calls; struct Count *next; } Count;
typedef struct Object {
  const char *kind;
  uintptr_t address;
  size_t bytes;
  int device;
  // Of a stream: its flags, what it is captured, and the number of its capture in place of mappings. Of physical memory: its file, its mappings, whether it was
  // released.
  int flags, state, mappings;
  struct Object *memory, *next;
  // Of a stream: the number that no other has.
  unsigned long long id;
  // Of a stream: the context that it was made in, where that is not its device's primary one.
  void *context;
} Object;

// Recursive, for one call may be made of another.
static pthread_mutex_t mutex = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static Count *counts;
static Object *objects;
static _Thread_local const char *function;

static long number(const char *name, long otherwise) {
  const char *text = getenv(name);
  return text ? atol(text) : otherwise;
}

static void wrong(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fprintf(stderr, "double: %s: ", function);
  vfprintf(stderr, format, arguments);
  fprintf(stderr, "\n");
  va_end(arguments);
  abort();
}

static Count *count_of(const char *name) {
  for (Count *count = counts; count; count = count->next)
    if (!strcmp(count->name, name)) return count;
  Count *count = calloc(1, sizeof *count);
  *count = (Count){name, 0, counts};
  return counts = count;
}

// The status that the environment asks this call for, 0 if none.
static int status_asked_for(const char *name, int call) {
  const char *place = getenv("FAKE_FAIL");
  size_t length = strlen(name);
  for (; place; place = strchr(place, ',') ? strchr(place, ',') + 1 : NULL) {
    char *end;
    if (strncmp(place, name, length) || place[length] != '=') continue;
    int status = (int)strtol(place + length + 1, &end, 10);
    return *end == ':' && call > atoi(end + 1) ? 0 : status;
  }
  return 0;
}

static int enter(const char *name) {
  pthread_mutex_lock(&mutex);
  function = name;
  return status_asked_for(name, ++count_of(name)->calls);
}

static void leave(int *status) { pthread_mutex_unlock(&mutex); }

// Opens what is no function of the library or driver, and looks at what they share: alone.
#define ALONE() int alone __attribute__((cleanup(leave), unused)) = pthread_mutex_lock(&mutex)

// Opens every function: counted, alone, and failing if that is asked for. With -DSTUB this is what a toolkit has to link with.
#ifdef STUB
#define CALL() return 34
#else
#define CALL() \
  int asked_for __attribute__((cleanup(leave))) = enter(__func__); \
  if (asked_for) return ANSWER(asked_for)
#endif

int double_calls(const char *name) {
  ALONE();
  Count *count = counts;
  while (count && strcmp(count->name, name)) count = count->next;
  return count ? count->calls : 0;
}

__attribute__((destructor)) static void report(void) {
  if (!number("FAKE_REPORT", 0)) return;
  for (Count *count = counts; count; count = count->next) fprintf(stderr, "%s %d\n", count->name, count->calls);
}

static Object *known(const char *kind, uintptr_t address) {
  for (Object *object = objects; object; object = object->next)
    if (!strcmp(object->kind, kind) && object->address == address) return object;
  return NULL;
}

static Object *alive(const char *kind, const void *address) {
  Object *object = known(kind, (uintptr_t)address);
  if (!object) wrong("%p is no %s, or no longer", address, kind);
  return object;
}

static Object *add(const char *kind, uintptr_t address, size_t bytes, int device) {
  static unsigned long long last_id;
  Object *object = calloc(1, sizeof *object);
  *object = (Object){
      .kind = kind, .address = address, .bytes = bytes, .device = device, .next = objects, .id = ++last_id};
  return objects = object;
}

static void removed(Object *object) {
  Object **place = &objects;
  while (*place != object) place = &(*place)->next;
  *place = object->next;
  free(object);
}
