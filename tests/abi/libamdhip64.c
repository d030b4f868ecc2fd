// An ABI double of HIP: the names and signatures of hip/hip_runtime_api.h that gpupool calls. As in HIP 7, a thread's
// last error stays until it is asked for. As in HIP up to 7.2, access is set and mappings end one at a time;
// hipMemCreate takes the current device. FAKE_HIP_VERSION is 10000000 * major + 100000 * minor. -DWITHOUT_STREAM_DEVICE
// leaves a symbol out.

static _Thread_local int last_error;
static int remembered(int status) {
  if (status) last_error = status;
  return status;
}
#define ANSWER(status) remembered(status)
#define OF_ANY_DEVICE 1

#include "driver.h"

typedef int Error;

enum { NO_DEVICE = 100, CONTEXT_IS_DESTROYED = 709, VIRTUAL_MEMORY_SUPPORTED = 89 };

static _Thread_local int current;

static int current_device(void) { return current; }

// HIP knows its streams, and refuses others.
static int unknown(const void *stream) {
  if ((uintptr_t)stream == 1) wrong("hipStreamLegacy, which HIP 6.1 does not know");
  return is_default(stream) || known("stream", (uintptr_t)stream) ? 0 : CONTEXT_IS_DESTROYED;
}
#define KNOWN(stream) if (unknown(stream)) return ANSWER(CONTEXT_IS_DESTROYED)
#define USED(stream) \
  KNOWN(stream); \
  do { int refused = use_beside_capture(stream); if (refused) return ANSWER(refused); } while (0)

Error hipInit(unsigned flags) { CALL(); return ANSWER(flags ? INVALID : 0); }
Error hipRuntimeGetVersion(int *version) {
  CALL();
  *version = (int)number("FAKE_HIP_VERSION", 70251831);
  return 0;
}
const char *hipGetErrorName(Error error) {
  switch (error) {
    case 0: return "hipSuccess";
    case 1: return "hipErrorInvalidValue";
    case 2: return "hipErrorOutOfMemory";
    case 3: return "hipErrorNotInitialized";
    case 100: return "hipErrorNoDevice";
    case 101: return "hipErrorInvalidDevice";
    case 600: return "hipErrorNotReady";
    case 709: return "hipErrorContextIsDestroyed";
    case 719: return "hipErrorLaunchFailure";
    case 801: return "hipErrorNotSupported";
    case 900: return "hipErrorStreamCaptureUnsupported";
    case 906: return "hipErrorStreamCaptureImplicit";
    default: return "hipErrorUnknown";
  }
}
Error hipGetLastError(void) {
  CALL();
  Error error = last_error;
  last_error = 0;
  return error;
}
Error hipPeekAtLastError(void) { return last_error; }
Error hipGetDeviceCount(int *count) { CALL(); *count = devices(); return ANSWER(*count ? 0 : NO_DEVICE); }
Error hipDeviceGetName(char *name, int length, int device) { CALL(); return ANSWER(put_name(name, length, device)); }
Error hipDeviceGetPCIBusId(char *id, int length, int device) {
  CALL();
  return ANSWER(put_pci_bus_id(id, length, device));
}
// As HIP, FAKE_UUID: the letters of the serial number without a final zero, if there is room for just them.
Error hipDeviceGetUuid(char *uuid, int device) {
  const char *said = getenv("FAKE_UUID");
  CALL();
  check_device(device);
  strncpy(uuid, said ? said : "fcb21f9b37a1d8a5", 16);
  return 0;
}
Error hipDeviceGetAttribute(int *value, int attribute, int device) {
  CALL();
  if (attribute != VIRTUAL_MEMORY_SUPPORTED) wrong("attribute %d", attribute);
  *value = has_virtual_memory();
  return 0;
}
Error hipDeviceTotalMem(size_t *bytes, int device) { CALL(); *bytes = total_bytes(); return 0; }
Error hipDeviceCanAccessPeer(int *answer, int device, int peer) {
  CALL();
  *answer = device != peer;
  return 0;
}
Error hipDeviceSynchronize(void) { CALL(); return ANSWER(spoil_captures()); }
Error hipGetDevice(int *device) { CALL(); *device = current; return 0; }
Error hipSetDevice(int device) {
  CALL();
  if (device < 0 || device >= devices()) return ANSWER(INVALID_DEVICE);
  current = device;
  return 0;
}
Error hipMemGetInfo(size_t *free, size_t *total) {
  CALL();
  *free = free_bytes(current);
  *total = total_bytes();
  return 0;
}
Error hipThreadExchangeStreamCaptureMode(int *mode) { CALL(); return ANSWER(exchange_mode(mode)); }
Error hipStreamCreateWithFlags(void **stream, unsigned flags) {
  CALL();
  return ANSWER(create_stream(stream, flags));
}
Error hipStreamDestroy(void *stream) { CALL(); return ANSWER(destroy_object("stream", stream)); }
#ifndef WITHOUT_STREAM_DEVICE
Error hipStreamGetDevice(void *stream, int *device) {
  CALL();
  if (is_default(stream)) wrong("the device of a default stream");
  KNOWN(stream);
  *device = device_of(stream);
  return 0;
}
#endif
#ifndef WITHOUT_STREAM_ID
Error hipStreamGetId(void *stream, unsigned long long *id) {
  CALL();
  if (is_default(stream)) wrong("the id of a default stream");
  KNOWN(stream);
  if (alive("stream", stream)->state == 1) wrong("a question that spoils the stream's capture");
  *id = alive("stream", stream)->id;
  return 0;
}
#endif
Error hipStreamQuery(void *stream) { CALL(); USED(stream); return 0; }
Error hipStreamSynchronize(void *stream) { CALL(); USED(stream); return 0; }
Error hipStreamWaitEvent(void *stream, void *event, unsigned flags) {
  CALL();
  USED(stream);
  alive("event", event);
  return 0;
}
Error hipStreamIsCapturing(void *stream, int *status) {
  CALL();
  KNOWN(stream);
  return ANSWER(capture_status(stream, status));
}
Error hipEventCreateWithFlags(void **event, unsigned flags) {
  CALL();
  return ANSWER(create_event(event, flags));
}
Error hipEventDestroy(void *event) { CALL(); return ANSWER(destroy_object("event", event)); }
Error hipEventRecord(void *event, void *stream) {
  CALL();
  USED(stream);
  return ANSWER(record(event, stream));
}
Error hipEventQuery(void *event) { CALL(); alive("event", event); return 0; }
Error hipEventSynchronize(void *event) { CALL(); alive("event", event); return 0; }
Error hipMemGetAllocationGranularity(size_t *bytes, const Properties *properties, int option) {
  CALL();
  *bytes = 4096;
  int status = check_properties(properties);
  return ANSWER(status ? status : option);
}
Error hipMemAddressReserve(void **address, size_t bytes, size_t alignment, void *wanted, unsigned long long flags) {
  CALL();
  return ANSWER(wanted || flags ? INVALID : reserve((uintptr_t *)address, bytes, alignment));
}
Error hipMemAddressFree(void *address, size_t bytes) {
  CALL();
  return ANSWER(free_reservation((uintptr_t)address, bytes));
}
Error hipMemCreate(void **handle, size_t bytes, const Properties *properties, unsigned long long flags) {
  CALL();
  int device = properties->location.id;
  if (device != current) wrong("memory of device %d with device %d current", device, current);
  return ANSWER(flags ? INVALID : create_physical((uintptr_t *)handle, bytes, properties));
}
Error hipMemExportToShareableHandle(void *descriptor, void *handle, int kind, unsigned long long flags) {
  CALL();
  return ANSWER(export_physical(descriptor, (uintptr_t)handle, kind, flags));
}
Error hipMemImportFromShareableHandle(void **handle, void *descriptor, int kind) {
  CALL();
  return ANSWER(import_physical((uintptr_t *)handle, (int)(uintptr_t)descriptor, kind));
}
Error hipIpcGetEventHandle(EventName *name, void *event) { CALL(); return ANSWER(export_event(name, event)); }
Error hipIpcOpenEventHandle(void **event, EventName name) { CALL(); return ANSWER(import_event(event, name)); }
Error hipMemRelease(void *handle) { CALL(); return ANSWER(release_physical((uintptr_t)handle)); }
Error hipMemMap(void *address, size_t bytes, size_t offset, void *handle, unsigned long long flags) {
  CALL();
  return ANSWER(map((uintptr_t)address, bytes, offset, (uintptr_t)handle, flags));
}
Error hipMemSetAccess(void *address, size_t bytes, const Access *access, size_t count) {
  CALL();
  return ANSWER(set_access((uintptr_t)address, bytes, access, count, 1));
}
Error hipMemUnmap(void *address, size_t bytes) {
  CALL();
  if (alive("mapping", address)->bytes != bytes) wrong("not one whole mapping");
  return ANSWER(each_mapping((uintptr_t)address, bytes, 1, unmap_mapping));
}
Error hipMemcpyDtoHAsync(void *to, void *from, size_t bytes, void *stream) {
  CALL();
  USED(stream);
  return ANSWER(copy(stream, to, from, from, bytes));
}
Error hipMemcpyHtoDAsync(void *to, void *from, size_t bytes, void *stream) {
  CALL();
  USED(stream);
  return ANSWER(copy(stream, to, from, to, bytes));
}
Error hipHostMalloc(void **address, size_t bytes, unsigned flags) {
  CALL();
  return ANSWER(allocate_pinned(address, bytes, flags));
}
Error hipHostFree(void *address) { CALL(); return ANSWER(free_pinned(address)); }
Error hipMalloc(void **address, size_t bytes) {
  CALL();
  return ANSWER(allocate((uintptr_t *)address, bytes, current));
}
Error hipFree(void *address) { CALL(); return ANSWER(release((uintptr_t)address)); }
Error hipMemsetD8Async(void *address, unsigned char byte, size_t bytes, void *stream) {
  CALL();
  USED(stream);
  return ANSWER(fill(stream, address, byte, bytes));
}
Error hipMallocAsync(void **address, size_t bytes, void *stream) {
  CALL();
  USED(stream);
  return ANSWER(allocate((uintptr_t *)address, bytes, device_of(stream)));
}
Error hipFreeAsync(void *address, void *stream) {
  CALL();
  USED(stream);
  return ANSWER(release((uintptr_t)address));
}
