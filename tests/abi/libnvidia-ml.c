// An ABI double of NVML: the names and signatures that gpupool calls, as NVIDIA's reference of R615 has them. Its device is the
// driver double's device 0. FAKE_GROUP is the one control group with a limit, FAKE_HARD_LIMIT and FAKE_GROUP_USED what it may
// have and has. FAKE_PROCESS_MIB is what this process has. -DWITHOUT_MEMORY_LIMITS leaves out what came with R615. A later struct may be longer: it writes behind it.

#include "double.h"
#include <unistd.h>

enum { NVML_NOT_FOUND = 6 };
typedef struct { const char *group; unsigned long long soft, hard, used; } Limits;
static int is_initialized, the_device;

int nvmlInit_v2(void) { CALL(); is_initialized = 1; return 0; }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
  CALL();
  if (!is_initialized) wrong("before nvmlInit_v2");
  *device = &the_device;
  return strcmp(uuid, "GPU-a0a0a0a0-a0a0-a0a0-a0a0-a0a0a0a0a0a0") ? NVML_NOT_FOUND : 0;
}
// Of several processes, this one the last.
typedef struct { unsigned process; unsigned long long bytes; unsigned instances[2]; } Process;
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, Process *processes) {
  CALL();
  if (device != &the_device) wrong("%p is no device", device);
  if (*count < 2) return 7;
  processes[0] = (Process){1, 1 << 20, {0}};
  processes[1] = (Process){(unsigned)getpid(), (unsigned long long)number("FAKE_PROCESS_MIB", 0) << 20, {0}};
  *count = 2;
  return 0;
}
#ifndef WITHOUT_MEMORY_LIMITS
int nvmlDeviceGetMemoryLimits_v1(void *device, Limits *limits) {
  CALL();
  if (device != &the_device) wrong("%p is no device", device);
  const char *group = getenv("FAKE_GROUP"), *hard = getenv("FAKE_HARD_LIMIT"), *used = getenv("FAKE_GROUP_USED");
  if (!group || strcmp(limits->group, group)) return NVML_NOT_FOUND;
  limits->soft = 0;
  limits->hard = strtoull(hard, NULL, 10);
  limits->used = strtoull(used, NULL, 10);
  memset(limits + 1, 0xff, 6 * sizeof *limits);
  return 0;
}
#endif
