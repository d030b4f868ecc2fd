// An ABI double of the CUDA driver: the names and signatures that gpupool calls, over nothing. The environment says how
// many devices it has, which CUDA it supports and what cuInit answers. -DWITHOUT_CAPTURE_MODE leaves a symbol out.

#include <stdlib.h>
#include <string.h>

#define MAX_DEVICES 8

typedef int Result;
typedef unsigned long long Address;
typedef struct { int device; } Context;
typedef struct { Context *context; } Stream;

static Context contexts[MAX_DEVICES];
static _Thread_local Context *current;
static _Thread_local int capture_mode;

static int number(const char *name, int otherwise) {
  const char *text = getenv(name);
  return text ? atoi(text) : otherwise;
}

Result cuInit(unsigned flags) { return flags ? 1 : number("FAKE_CUINIT", 0); }
Result cuDriverGetVersion(int *version) { *version = number("FAKE_DRIVER_VERSION", 13000); return 0; }
Result cuDeviceGetCount(int *count) { *count = number("FAKE_DEVICES", 1); return 0; }
Result cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
Result cuDeviceGetName(char *name, int length, int device) { strncpy(name, "double", length); return 0; }
Result cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) { *flags = 0; *active = 1; return 0; }
Result cuDevicePrimaryCtxRetain(Context **context, int device) {
  contexts[device].device = device;
  *context = &contexts[device];
  return 0;
}
Result cuCtxGetCurrent(Context **context) { *context = current; return 0; }
Result cuCtxSetCurrent(Context *context) { current = context; return 0; }
Result cuCtxGetDevice(int *device) {
  if (!current) return 201;
  *device = current->device;
  return 0;
}
Result cuMemGetInfo_v2(size_t *free, size_t *total) {
  *free = (size_t)number("FAKE_FREE_MIB", 1024) << 20;
  *total = (size_t)1 << 30;
  return current ? 0 : 201;
}
#ifndef WITHOUT_CAPTURE_MODE
Result cuThreadExchangeStreamCaptureMode(int *mode) { int old = capture_mode; capture_mode = *mode; *mode = old; return 0; }
#endif
Result cuStreamCreate(Stream **stream, unsigned flags) {
  if (!current) return 201;
  *stream = malloc(sizeof(Stream));
  (*stream)->context = current;
  return 0;
}
Result cuStreamDestroy_v2(Stream *stream) { free(stream); return 0; }
Result cuStreamGetCtx(Stream *stream, Context **context) { *context = stream->context; return 0; }
Result cuStreamQuery(Stream *stream) { return 0; }
Result cuStreamSynchronize(Stream *stream) { return 0; }
Result cuStreamWaitEvent(Stream *stream, void *event, unsigned flags) { return 0; }
Result cuStreamIsCapturing(Stream *stream, int *status) { *status = 0; return 0; }
Result cuEventCreate(void **event, unsigned flags) { *event = malloc(1); return 0; }
Result cuEventDestroy_v2(void *event) { free(event); return 0; }
Result cuEventRecord(void *event, Stream *stream) { return 0; }
Result cuEventQuery(void *event) { return 0; }
Result cuEventSynchronize(void *event) { return 0; }
Result cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = (size_t)1 << 30; return 0; }
Result cuDeviceCanAccessPeer(int *answer, int device, int peer) { *answer = 0; return 0; }
Result cuDeviceGetAttribute(int *value, int attribute, int device) { *value = 0; return 0; }
Result cuMemGetAllocationGranularity(size_t *bytes, const void *properties, int option) { *bytes = 2 << 20; return 0; }
// Without virtual memory, as the attribute says.
Result cuMemAddressReserve(Address *address, size_t bytes, size_t align, Address wanted, Address flags) { return 801; }
Result cuMemAddressFree(Address address, size_t bytes) { return 801; }
Result cuMemCreate(Address *handle, size_t bytes, const void *properties, Address flags) { return 801; }
Result cuMemRelease(Address handle) { return 801; }
Result cuMemMap(Address address, size_t bytes, size_t offset, Address handle, Address flags) { return 801; }
Result cuMemSetAccess(Address address, size_t bytes, const void *access, size_t count) { return 801; }
Result cuMemUnmap(Address address, size_t bytes) { return 801; }
Result cuMemAlloc_v2(Address *address, size_t bytes) {
  if (!current) return 201;
  *address = (Address)malloc(bytes);
  return *address ? 0 : 2;
}
Result cuMemFree_v2(Address address) { free((void *)address); return 0; }
Result cuMemAllocAsync(Address *address, size_t bytes, Stream *stream) { return cuMemAlloc_v2(address, bytes); }
Result cuMemFreeAsync(Address address, Stream *stream) { return cuMemFree_v2(address); }
