// An ABI double of a profiler's library for NVTX: it writes what it is told to the file that NVTX_DOUBLE names, a line
// each. The declarations are those of nvtx3/nvToolsExt.h and nvtxDetail/nvtxTypes.h, version 3. A call that no program
// may make (a domain it was not given, a pop without a push) is written as `wrong`. With NVTX_REFUSE=1 it refuses to be
// attached.

#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MODULE_CORE = 1, MODULE_CUDA, MODULE_OPENCL, MODULE_CUDART, MODULE_CORE2, MODULE_SYNC, MODULE_SIZE };
enum { ETID_CALLBACKS = 1, ETID_VERSIONINFO = 3 };

typedef void (*Function)(void);
typedef struct {
  size_t struct_size;
  int (*GetModuleFunctionTable)(int module, Function ***table, unsigned int *size);
} Callbacks;
typedef struct {
  size_t struct_size;
  uint32_t version, reserved0;
  void (*SetInjectionNvtxVersion)(uint32_t version);
} VersionInfo;
typedef struct {
  uint16_t version, size;
  uint32_t category;
  int32_t colorType;
  uint32_t color;
  int32_t payloadType, reserved0;
  union { uint64_t ullValue; double dValue; } payload;
  int32_t messageType;
  union { const char *ascii; const void *registered; } message;
} Attributes;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static char domain;
static _Thread_local int depth;

#define WRITE(...) do { \
    pthread_mutex_lock(&mutex); \
    FILE *file = fopen(getenv("NVTX_DOUBLE"), "a"); \
    fprintf(file, __VA_ARGS__); \
    fclose(file); \
    pthread_mutex_unlock(&mutex); \
  } while (0)

static void *domain_create(const char *name) {
  WRITE("domain %s\n", name);
  return &domain;
}

static int range_push(void *of, const Attributes *range) {
  if (of != &domain || range->version != 3 || range->size != sizeof *range || range->messageType != 1)
    WRITE("wrong push\n");
  WRITE("push %d %lu %s\n", gettid(), range->payloadType == 1 ? range->payload.ullValue : 0, range->message.ascii);
  return depth++;
}

static int range_pop(void *of) {
  if (of != &domain || depth == 0) WRITE("wrong pop\n");
  WRITE("pop %d\n", gettid());
  return --depth;
}

static void name_thread(uint32_t thread, const char *name) { WRITE("thread %u %s\n", thread, name); }
static void name_stream(void *stream, const char *name) { WRITE("stream %lu %s\n", (unsigned long)stream, name); }

int InitializeInjectionNvtx2(const void *(*get_export_table)(uint32_t id)) {
  static const unsigned int sizes[MODULE_SIZE] = {0, 16, 9, 15, 7, 16, 7};
  Function **tables[MODULE_SIZE];
  if (getenv("NVTX_REFUSE")) return 0;
  const VersionInfo *info = get_export_table(ETID_VERSIONINFO);
  const Callbacks *callbacks = get_export_table(ETID_CALLBACKS);
  if (get_export_table(2) || info->struct_size != sizeof *info || info->version != 3 ||
      callbacks->struct_size != sizeof *callbacks)
    WRITE("wrong export tables\n");
  info->SetInjectionNvtxVersion(3);
  for (int module = 0; module <= MODULE_SIZE; module++) {
    unsigned int size = 0;
    int is_known = callbacks->GetModuleFunctionTable(module, module < MODULE_SIZE ? &tables[module] : NULL, &size);
    int is_right = !is_known;
    if (module > 0 && module < MODULE_SIZE) is_right = is_known && size == sizes[module] && !tables[module][0];
    for (unsigned int id = 1; is_right && id < size; id++) is_right = tables[module][id] != NULL;
    if (!is_right) WRITE("wrong table %d\n", module);
  }
  *tables[MODULE_CORE][14] = (Function)name_thread;
  *tables[MODULE_CUDA][5] = (Function)name_stream;
  *tables[MODULE_CORE2][4] = (Function)range_push;
  *tables[MODULE_CORE2][5] = (Function)range_pop;
  *tables[MODULE_CORE2][12] = (Function)domain_create;
  WRITE("attached\n");
  return 1;
}
