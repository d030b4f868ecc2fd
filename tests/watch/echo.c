// A driver that notes what it is called with and answers what the program has set, for what depends on that alone.
// CALLS are the functions that libgpupool_watch.so knows, each with its name for cuGetProcAddress and the version of
// CUDA that brought it, and FIND where that is cuGetProcAddress itself.

#include "echo.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

Echo echo;

// What a function answers. Its own work is over by then, as the driver's is before a call has returned.
static int answer(const char *symbol, const size_t *arguments) {
  echo.symbol = symbol;
  __atomic_add_fetch(&echo.calls, 1, __ATOMIC_RELAXED);
  memcpy(echo.arguments, arguments, sizeof echo.arguments);
  int status = echo.status;
  int makes = strstr(symbol, "Alloc") || strstr(symbol, "Create");
  if (!status && makes && echo.gives) *(size_t *)arguments[0] = echo.gives;
  if (echo.meanwhile) echo.meanwhile();
  return status;
}

#define CALL(symbol, name, since) \
  int symbol(size_t a, size_t b, size_t c, size_t d, size_t e, size_t f, size_t g, size_t h) { \
    return answer(#symbol, (size_t[]){a, b, c, d, e, f, g, h}); \
  }
#define FIND(symbol, name, since)
CALLS
#undef CALL
#undef FIND

// One that libgpupool_watch.so does not know.
int cuInit(size_t flags) { return answer("cuInit", (size_t[8]){flags}); }

int cuCtxGetDevice(int *device) { *device = echo.device; return echo.device < 0 ? 201 : 0; }
// A stream is the number of its device.
int cuStreamGetDevice(size_t stream, int *device) { *device = (int)stream; return 0; }
int cuStreamIsCapturing(size_t stream, int *status) { *status = stream && stream == echo.captured; return 0; }
int cuCtxGetCurrent(void **context) { *context = echo.context; return 0; }
int cuMemGetInfo_v2(size_t *free, size_t *total) { *free = echo.free; *total = echo.total; return 0; }
int cuDeviceTotalMem_v2(size_t *total, int device) { *total = echo.total; return 0; }
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) { *flags = 0; *active = 0; return 0; }

int cuGetProcAddress(const char *, void **, int, size_t);
int cuGetProcAddress_v2(const char *, void **, int, size_t, int *);

// Its own functions, whoever stands in for them: it is linked with -Bsymbolic-functions.
#define CALL(symbol, name, since) {#symbol, name, since, (void *)symbol},
#define FIND CALL
static const struct { const char *symbol, *name; int since; void *function; } known[] = {CALLS};
enum { COUNT = sizeof known / sizeof *known, PER_THREAD_STREAMS = 2 };

int cuDriverGetVersion(int *version) { *version = echo.version ? echo.version : 1 << 30; return 0; }

static int find(const char *name, void **place, int version, size_t flags) {
  int best = -1;
  if (echo.version && version > echo.version) version = echo.version;
  char per_thread[64];
  *place = NULL;
  for (int index = 0; index < COUNT; index++) {
    int is_newer = best < 0 || known[index].since > known[best].since;
    if (!strcmp(known[index].name, name) && known[index].since <= version && is_newer) best = index;
  }
  if (best < 0) return 500;
  *place = known[best].function;
  snprintf(per_thread, sizeof per_thread, "%s_ptsz", known[best].symbol);
  for (int index = 0; index < COUNT && flags == PER_THREAD_STREAMS; index++)
    if (!strcmp(known[index].symbol, per_thread)) *place = known[index].function;
  return 0;
}
int cuGetProcAddress(const char *name, void **place, int version, size_t flags) {
  return find(name, place, version, flags);
}
int cuGetProcAddress_v2(const char *name, void **place, int version, size_t flags, int *status) {
  int answer = find(name, place, version, flags);
  if (status) *status = answer ? 1 : 0;
  return answer;
}
