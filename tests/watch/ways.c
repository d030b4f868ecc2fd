// Each function that libgpupool_watch.so knows, got at in each way that programs have: the driver must be called once,
// with the same arguments, its answer must come back, and what it gives must be counted. Linked with the driver, and
// with -DLOADED without it; CALLS and WITHOUT are those of echo.c.

#include "watched.h"
#include "echo.h"

typedef int (*Function)(size_t, size_t, size_t, size_t, size_t, size_t, size_t, size_t);
typedef int (*Find)(const char *, void **, int, size_t, int *);
typedef struct { const char *symbol, *name; int since; void *linked; } Known;
typedef struct { const char *name; void *(*find)(const Known *); int by_name; } Way;

#define FIND CALL
#ifndef LOADED
#define CALL(symbol, name, since) extern int symbol(size_t, size_t, size_t, size_t, size_t, size_t, size_t, size_t);
CALLS
#undef CALL
#define CALL(symbol, name, since) {#symbol, name, since, (void *)symbol},
#else
#define CALL(symbol, name, since) {#symbol, name, since, NULL},
#endif
static const Known known[] = {CALLS};
enum { COUNT = sizeof known / sizeof *known };

static void *driver, *runtime;

static void *handle(const Known *call) { return dlsym(driver, call->symbol); }
static void *version(const Known *call) { return dlvsym(driver, call->symbol, "libcuda.so.1"); }
static void *self(const Known *call) { return dlsym(dlopen(NULL, RTLD_NOW), call->symbol); }
static void *everywhere(const Known *call) { return dlsym(RTLD_DEFAULT, call->symbol); }
static void *next(const Known *call) { return dlsym(RTLD_NEXT, call->symbol); }
static void *next_version(const Known *call) { return dlvsym(RTLD_NEXT, call->symbol, "libcuda.so.1"); }
static void *next_of_another(const Known *call) {
  void *(*asks_next)(const char *) = (void *(*)(const char *))dlsym(RTLD_DEFAULT, "asks_next");
  return asks_next(call->symbol);
}
static void *first(const Known *call) {
  Find find = (Find)dlsym(driver, "cuGetProcAddress");
  void *found = NULL;
  find(call->name, &found, call->since, 0, NULL);
  return found;
}
static void *second(const Known *call) {
  Find find = (Find)dlsym(driver, "cuGetProcAddress_v2");
  void *found = NULL;
  find(call->name, &found, call->since, 0, NULL);
  return found;
}
static void *per_thread(const Known *call) {
  Find find = (Find)dlsym(driver, "cuGetProcAddress_v2");
  void *found = NULL;
  find(call->name, &found, call->since, 2, NULL);
  return found;
}
static void *entry_point(const Known *call) {
  Find find = (Find)dlsym(runtime, "cudaGetDriverEntryPointByVersion");
  void *found = NULL;
  find(call->name, &found, call->since, 0, NULL);
  return found;
}
// The runtime's own version of CUDA decides which.
static void *newest_entry_point(const Known *call) {
  int (*find)(const char *, void **, size_t, int *) =
      (int (*)(const char *, void **, size_t, int *))dlsym(runtime, "cudaGetDriverEntryPoint");
  void *found = NULL;
  find(call->name, &found, 0, NULL);
  return found;
}

#define COMMON \
  {"dlsym of a handle", handle, 0}, {"dlvsym of a handle", version, 0}, {"a handle of dlopen(NULL)", self, 0}, \
      {"RTLD_DEFAULT", everywhere, 0}, {"RTLD_NEXT", next, 0}, {"dlvsym of RTLD_NEXT", next_version, 0}, \
      {"cuGetProcAddress", first, 1}, {"cuGetProcAddress_v2", second, 1}, {"streams of each thread", per_thread, 1}, \
      {"the runtime, by version", entry_point, 1}, {"the runtime", newest_entry_point, 1}

#ifdef LOADED
static const Way ways[] = {COMMON};
#else
static void *linked(const Known *call) { return call->linked; }
// Another library that was preloaded is not asked about what is loaded later.
static const Way ways[] = {COMMON, {"linked", linked, 0}, {"RTLD_NEXT of another library", next_of_another, 0}};
#endif

static Echo *driver_s(void) { return (Echo *)dlsym(driver, "echo"); }

static const char *name_of(const char *symbol) {
  for (int index = 0; index < COUNT; index++)
    if (!strcmp(known[index].symbol, symbol)) return known[index].name;
  return "";
}

static Function found_by(const Way *way, const char *symbol) {
  for (int index = 0; index < COUNT; index++)
    if (!strcmp(known[index].symbol, symbol)) return (Function)way->find(&known[index]);
  return NULL;
}

static int is_asked_for_another(const char *symbol) {
  return !strncmp(symbol, "cuGetProcAddress", strlen("cuGetProcAddress"));
}

static void is_passed_on(const Way *way, const Known *call) {
  enum { UNKNOWN = 999 };
  Echo *echo = driver_s();
  Function function = (Function)way->find(call);
  CHECK(function, "%s by %s is missing", call->symbol, way->name);
  CHECK(!dlerror(), "%s by %s was found, and an error says that it was not", call->symbol, way->name);
  Dl_info info;
  int is_ours = dladdr((void *)function, &info) && strstr(info.dli_fname, "libgpupool_watch.so");
  CHECK(is_ours, "%s by %s is the driver's own", call->symbol, way->name);
  if (is_asked_for_another(call->symbol)) return;
  // The third argument of some is looked at.
  Properties properties = {1, 0, 1, 0, NULL, {0}};
  size_t arguments[8] = {11, 12, (size_t)&properties, 14, 15, 16, 17, 18};
  // Options are looked at too.
  if (strstr(call->symbol, "Load")) memset(arguments + 2, 0, 3 * sizeof *arguments);
  echo->status = UNKNOWN;
  echo->calls = 0;
  size_t *a = arguments;
  int status = function(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]);
  CHECK(status == UNKNOWN, "%s by %s answers %d", call->symbol, way->name, status);
  CHECK(echo->calls == 1, "%s by %s calls the driver %d times", call->symbol, way->name, echo->calls);
  // As many as it has, and no fewer than are in registers.
  int has_more = strstr(call->symbol, "cuLibraryLoad") ||
      (strstr(call->symbol, "cuLaunch") && !strstr(call->symbol, "cuLaunchKernelEx"));
  size_t passed = (has_more ? 8 : 6) * sizeof *arguments;
  CHECK(!memcmp(arguments, echo->arguments, passed), "%s by %s changes arguments", call->symbol, way->name);
  int is_it = !strcmp(way->by_name ? name_of(echo->symbol) : echo->symbol, way->by_name ? call->name : call->symbol);
  is_it |= way->find == per_thread && !strncmp(echo->symbol, call->symbol, strlen(call->symbol));
  CHECK(is_it, "%s by %s is %s", call->symbol, way->name, echo->symbol);
}

// What a call took is known by whom it was counted.
static void is_counted(const Way *way) {
  Echo *echo = driver_s();
  size_t address = 0;
  Function allocate = found_by(way, "cuMemAlloc_v2"), release = found_by(way, "cuMemFree_v2");
  echo->status = 0;
  echo->gives = 0x1000;
  CHECK(!allocate((size_t)&address, 4096, 0, 0, 0, 0, 0, 0) && address == 0x1000, "by %s", way->name);
  Held held = held_by(NULL, 0);
  CHECK(held.bytes == 4096 && held.count == 1, "of what is got by %s: %d blocks", way->name, (int)held.count);
  echo->gives = 0;
  CHECK(!release(address, 0, 0, 0, 0, 0, 0, 0), "by %s", way->name);
  HOLDS(NULL, 0, 0, 0);
}

// What the driver lacks, and what it has that nobody counts.
static void others_are_the_driver_s(void) {
  const char *places[] = {"cuInit", "cuMemNothing", "nothing"};
  void *handles[] = {driver, RTLD_DEFAULT, RTLD_NEXT};
  for (int index = 0; index < 9; index++) {
    const char *symbol = places[index % 3];
    dlerror();
    void *found = dlsym(handles[index / 3], symbol);
    const char *error = dlerror();
    int is_there = index % 3 == 0;
    const char *reason = error ? error : "no error";
    CHECK((found != NULL) == is_there && (error == NULL) == is_there, "%s: %p, %s", symbol, found, reason);
    Dl_info info;
    CHECK(!found || (dladdr(found, &info) && strstr(info.dli_fname, "libcuda.so")), "%s is elsewhere", symbol);
  }
}

#ifdef WITHOUT
static void stays_missing(void) {
  const Known call = {WITHOUT, "", 0, NULL};
  void *(*finds[])(const Known *) = {handle, version, self, everywhere, next, next_version, next_of_another};
  for (int index = 0; index < 7; index++) {
    dlerror();
    void *found = finds[index](&call);
    const char *error = dlerror();
    CHECK(!found && error && strstr(error, WITHOUT), "%d: %p, %s", index, found, error ? error : "no error");
    CHECK(!dlerror(), "the error was told twice");
    // After a failure another is found, and no error is left of it.
    CHECK(dlsym(driver, "cuMemFree_v2") && !dlerror(), "the error of what is missing stays");
  }
}
#endif

int main(void) {
  driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  runtime = dlopen("libcudart.so.12", RTLD_NOW | RTLD_LOCAL);
  CHECK(driver && runtime, "%s", dlerror());
  int count = 0;
#ifdef WITHOUT
  stays_missing();
#endif
  for (size_t way = 0; way < sizeof ways / sizeof *ways; way++) {
    for (int call = 0; call < COUNT; call++, count++) is_passed_on(&ways[way], &known[call]);
    is_counted(&ways[way]);
  }
  others_are_the_driver_s();
  printf("%d calls\n", count);
  return 0;
}
