// An ABI double of the CUDA driver: the names and signatures that gpupool calls. FAKE_DRIVER_VERSION says which CUDA it
// supports, FAKE_CAPABILITY the major number of its devices' compute capability; -DWITHOUT_CAPTURE_MODE leaves a symbol
// out, -DWITHOUT_GRAPH_OBJECTS those that came with CUDA 12.3, -DWITHOUT_GREEN_CONTEXTS and -DWITHOUT_CONTEXT_EVENTS what came
// with CUDA 12.5. A dead
// stream aborts here where the driver crashes.

#include "driver.h"
#include <stddef.h>

typedef int Result;
typedef unsigned long long Address;
typedef struct { int device, is_green, is_destroyed; } Context;

typedef struct UserObject {
  void *kept, (*destroy)(void *);
  uintptr_t graph;
  struct UserObject *next;
} UserObject;

enum { INVALID_CONTEXT = 201, CAPABILITY_MAJOR = 75, CAPABILITY_MINOR = 76, VIRTUAL_MEMORY_SUPPORTED = 102 };
enum { CAN_MAP_HOST_MEMORY = 19, POSIX_FD_SUPPORTED = 103, RDMA_WITH_VMM_SUPPORTED = 110 };
enum { PCI_BUS = 33, PCI_DEVICE = 34, PCI_DOMAIN = 50, REGISTERED_IN_PLACE = 91, MEMORY_POOLS_SUPPORTED = 115, HOST_NUMA_ID = 134 };
// The driver's own pool, which says that it has so much.
enum { POOL_RESERVED = 5, POOL_RESERVED_HIGH = 6, POOL_BYTES = 64 << 20 };

static UserObject *user_objects;

static Context contexts[MAX_DEVICES];
static _Thread_local Context *current;

static int current_device(void) { return current ? current->device : -1; }
#define NEEDS_CONTEXT() if (!current) return INVALID_CONTEXT
static int is_retained[MAX_DEVICES];

#include "contexts.h"

Result cuInit(unsigned flags) { CALL(); return flags ? INVALID : 0; }
// As the driver, which refuses a status that it does not know.
Result cuGetErrorName(Result status, const char **name) {
  static const struct { Result status; const char *name; } names[] = {
      {0, "CUDA_SUCCESS"}, {1, "CUDA_ERROR_INVALID_VALUE"}, {2, "CUDA_ERROR_OUT_OF_MEMORY"},
      {3, "CUDA_ERROR_NOT_INITIALIZED"}, {34, "CUDA_ERROR_STUB_LIBRARY"}, {100, "CUDA_ERROR_NO_DEVICE"},
      {101, "CUDA_ERROR_INVALID_DEVICE"}, {201, "CUDA_ERROR_INVALID_CONTEXT"}, {400, "CUDA_ERROR_INVALID_HANDLE"},
      {600, "CUDA_ERROR_NOT_READY"}, {700, "CUDA_ERROR_ILLEGAL_ADDRESS"}, {709, "CUDA_ERROR_CONTEXT_IS_DESTROYED"},
      {719, "CUDA_ERROR_LAUNCH_FAILED"}, {801, "CUDA_ERROR_NOT_SUPPORTED"}, {802, "CUDA_ERROR_SYSTEM_NOT_READY"},
      {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"}, {804, "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE"},
      {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"}, {901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"},
      {906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT"}, {917, "CUDA_ERROR_STREAM_DETACHED"}, {999, "CUDA_ERROR_UNKNOWN"}};
  *name = NULL;
#ifdef STUB
  return 34;
#endif
  for (size_t index = 0; index < sizeof names / sizeof *names; index++)
    if (names[index].status == status) *name = names[index].name;
  return *name ? 0 : INVALID;
}
Result cuDriverGetVersion(int *version) {
  CALL();
  *version = (int)number("FAKE_DRIVER_VERSION", 13000);
  return 0;
}
Result cuDeviceGetCount(int *count) { CALL(); *count = devices(); return 0; }
Result cuDeviceGet(int *device, int ordinal) {
  CALL();
  *device = ordinal;
  return ordinal < devices() ? 0 : INVALID_DEVICE;
}
Result cuDeviceGetName(char *name, int length, int device) { CALL(); return put_name(name, length, device); }
Result cuDeviceGetPCIBusId(char *id, int length, int device) { CALL(); return put_pci_bus_id(id, length, device); }
Result cuDeviceGetUuid_v2(unsigned char *uuid, int device) {
  CALL();
  check_device(device);
  memset(uuid, 0xa0 + device, 16);
  return 0;
}
Result cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
  CALL();
  check_device(device);
  *flags = 0;
  *active = is_retained[device] > 0;
  return 0;
}
Result cuDevicePrimaryCtxRetain(Context **context, int device) {
  CALL();
  check_device(device);
  is_retained[device]++;
  contexts[device].device = device;
  *context = &contexts[device];
  return 0;
}
Result cuCtxGetCurrent(Context **context) { CALL(); *context = current; return 0; }
Result cuCtxSetCurrent(Context *context) {
  CALL();
  check_context(context);
  current = context;
  return 0;
}
Result cuCtxGetDevice(int *device) { CALL(); NEEDS_CONTEXT(); *device = current->device; return 0; }
Result cuCtxSynchronize(void) { CALL(); NEEDS_CONTEXT(); return spoil_captures(); }
Result cuMemGetInfo_v2(size_t *free, size_t *total) {
  CALL();
  NEEDS_CONTEXT();
  *free = free_bytes(current->device);
  *total = total_bytes();
  return 0;
}
#ifndef WITHOUT_CAPTURE_MODE
Result cuThreadExchangeStreamCaptureMode(int *mode) { CALL(); return exchange_mode(mode); }
#endif
Result cuStreamCreate(void **stream, unsigned flags) {
  CALL();
  NEEDS_CONTEXT();
  int status = create_stream(stream, flags);
  if (!is_primary(current)) alive("stream", *stream)->context = current;
  return status;
}
Result cuStreamDestroy_v2(void *stream) { CALL(); return destroy_object("stream", stream); }
Result cuStreamGetId(void *stream, unsigned long long *id) {
  CALL();
  if (alive("stream", stream)->state == 1) wrong("a question that spoils the stream's capture");
  *id = alive("stream", stream)->id;
  return 0;
}
Result cuStreamQuery(void *stream) { CALL(); USES_STREAM(stream); return 0; }
Result cuStreamSynchronize(void *stream) { CALL(); USES_STREAM(stream); return 0; }
Result cuStreamWaitEvent(void *stream, void *event, unsigned flags) {
  CALL();
  USES_STREAM(stream);
  alive("event", event);
  return 0;
}
Result cuStreamIsCapturing(void *stream, int *status) {
  CALL();
  NEEDS_STREAM(stream);
  return capture_status(stream, status);
}
#ifndef WITHOUT_GRAPH_OBJECTS
Result cuStreamGetCaptureInfo_v3(
    void *stream, int *status, Address *id, void **graph, void ***nodes, void **edges, size_t *count) {
  CALL();
  if (nodes || edges || count) wrong("more than is needed");
  NEEDS_STREAM(stream);
  int answer = capture_status(stream, status);
  if (answer || *status != 1) return answer;
  *id = alive("stream", stream)->mappings;
  *graph = (void *)*id;
  return 0;
}
Result cuUserObjectCreate(UserObject **object, void *kept, void (*destroy)(void *), unsigned count, unsigned flags) {
  CALL();
  if (count != 1 || flags != 1) wrong("not one reference, or a destructor that synchronizes");
  *object = malloc(sizeof **object);
  **object = (UserObject){kept, destroy, 0, user_objects};
  user_objects = *object;
  return 0;
}
static void end_user_object(UserObject *object) {
  UserObject **place = &user_objects;
  while (*place != object) place = &(*place)->next;
  *place = object->next;
  object->destroy(object->kept);
  free(object);
}
Result cuUserObjectRelease(UserObject *object, unsigned count) {
  CALL();
  if (count != 1 || object->graph) wrong("not this caller's reference");
  end_user_object(object);
  return 0;
}
Result cuGraphRetainUserObject(void *graph, UserObject *object, unsigned count, unsigned flags) {
  CALL();
  if (count != 1 || flags != 1) wrong("not one reference, handed on");
  int is_captured = 0;
  for (Object *stream = objects; stream; stream = stream->next)
    is_captured |= !strcmp(stream->kind, "stream") && stream->state == 1 && stream->mappings == (uintptr_t)graph;
  if (!is_captured) wrong("%p is no graph that is being captured", graph);
  object->graph = (uintptr_t)graph;
  return 0;
}
// Destroys a graph that was captured, by its number.
void double_destroy_graph(int graph) {
  for (UserObject *object = user_objects, *next; object; object = next) {
    next = object->next;
    if (object->graph == graph) end_user_object(object);
  }
}
#endif
Result cuEventCreate(void **event, unsigned flags) { CALL(); NEEDS_CONTEXT(); return create_event(event, flags); }
Result cuEventDestroy_v2(void *event) { CALL(); return destroy_object("event", event); }
Result cuEventRecord(void *event, void *stream) { CALL(); USES_STREAM(stream); return record(event, stream); }
#ifndef WITHOUT_CONTEXT_EVENTS
Result cuCtxRecordEvent(Context *context, void *event) {
  CALL();
  // That of a primary one has the work of its green contexts too.
  if (!is_primary(context)) wrong("%p has a part of the device's work alone", context);
  if (context->device != alive("event", event)->device) wrong("an event of another device");
  return spoil_captures();
}
Result cuCtxWaitEvent(Context *context, void *event) {
  CALL();
  if (!is_primary(context)) wrong("%p has a part of the device's work alone", context);
  if (context->device != alive("event", event)->device) wrong("an event of another device");
  return spoil_captures();
}
#endif
Result cuEventQuery(void *event) { CALL(); alive("event", event); return 0; }
Result cuEventSynchronize(void *event) { CALL(); alive("event", event); return 0; }
Result cuDeviceTotalMem_v2(size_t *bytes, int device) { CALL(); *bytes = total_bytes(); return 0; }
Result cuDeviceCanAccessPeer(int *answer, int device, int peer) { CALL(); *answer = device != peer; return 0; }
Result cuDeviceGetAttribute(int *value, int attribute, int device) {
  CALL();
  switch (attribute) {
    case CAPABILITY_MAJOR: *value = (int)number("FAKE_CAPABILITY", 9); break;
    case CAPABILITY_MINOR: *value = 0; break;
    case VIRTUAL_MEMORY_SUPPORTED: *value = has_virtual_memory(); break;
    case POSIX_FD_SUPPORTED: *value = is_shareable(); break;
    case RDMA_WITH_VMM_SUPPORTED: *value = is_rdma(); break;
    case CAN_MAP_HOST_MEMORY: *value = 1; break;
    case REGISTERED_IN_PLACE: *value = (int)number("FAKE_IN_PLACE", 1); break;
    case MEMORY_POOLS_SUPPORTED: *value = 1; break;
    case HOST_NUMA_ID: *value = (int)number("FAKE_NUMA", -1); break;
    case PCI_BUS: case PCI_DEVICE: case PCI_DOMAIN: *value = device; break;
    default: wrong("attribute %d", attribute);
  }
  return 0;
}
Result cuMemGetAllocationGranularity(size_t *bytes, const Properties *properties, int option) {
  CALL();
  *bytes = PAGE;
  int status = check_properties(properties);
  return status ? status : option;
}
Result cuMemAddressReserve(Address *address, size_t bytes, size_t alignment, Address wanted, Address flags) {
  CALL();
  return wanted || flags ? INVALID : reserve((uintptr_t *)address, bytes, alignment);
}
Result cuMemAddressFree(Address address, size_t bytes) { CALL(); return free_reservation(address, bytes); }
Result cuMemCreate(Address *handle, size_t bytes, const Properties *properties, Address flags) {
  CALL();
  return flags ? INVALID : create_physical((uintptr_t *)handle, bytes, properties);
}
Result cuMemExportToShareableHandle(int *descriptor, Address handle, int kind, Address flags) {
  CALL();
  return export_physical(descriptor, handle, kind, flags);
}
Result cuMemImportFromShareableHandle(Address *handle, void *descriptor, int kind) {
  CALL();
  return import_physical((uintptr_t *)handle, (int)(uintptr_t)descriptor, kind);
}
Result cuIpcGetEventHandle(EventName *name, const void *event) { CALL(); NEEDS_CONTEXT(); return export_event(name, event); }
Result cuIpcOpenEventHandle(void **event, EventName name) { CALL(); NEEDS_CONTEXT(); return import_event(event, name); }
Result cuMemRelease(Address handle) { CALL(); return release_physical(handle); }
Result cuMemMap(Address address, size_t bytes, size_t offset, Address handle, Address flags) {
  CALL();
  return map(address, bytes, offset, handle, flags);
}
Result cuMemSetAccess(Address address, size_t bytes, const Access *access, size_t count) {
  CALL();
  return set_access(address, bytes, access, count, -1);
}
Result cuMemUnmap(Address address, size_t bytes) { CALL(); return each_mapping(address, bytes, -1, unmap_mapping); }
Result cuMemcpyDtoHAsync_v2(void *to, Address from, size_t bytes, void *stream) {
  CALL();
  USES_STREAM(stream);
  return copy(stream, to, (void *)from, (void *)from, bytes);
}
Result cuMemcpyHtoDAsync_v2(Address to, const void *from, size_t bytes, void *stream) {
  CALL();
  USES_STREAM(stream);
  return copy(stream, (void *)to, from, (void *)to, bytes);
}
Result cuMemHostAlloc(void **address, size_t bytes, unsigned flags) {
  CALL();
  NEEDS_CONTEXT();
  return allocate_pinned(address, bytes, flags);
}
Result cuMemFreeHost(void *address) { CALL(); NEEDS_CONTEXT(); return free_pinned(address); }
Result cuMemHostRegister_v2(void *address, size_t bytes, unsigned flags) {
  CALL();
  NEEDS_CONTEXT();
  return pin((uintptr_t)address, bytes, flags);
}
Result cuMemHostUnregister(void *address) { CALL(); NEEDS_CONTEXT(); return unpin(address); }
Result cuMemAlloc_v2(Address *address, size_t bytes) {
  CALL();
  NEEDS_CONTEXT();
  Result status = allocate((uintptr_t *)address, bytes, current->device);
  if (!status) alive("memory", (void *)*address)->context = current;
  return status;
}
Result cuMemFree_v2(Address address) { CALL(); return release(address); }
Result cuMemsetD8Async(Address address, unsigned char byte, size_t bytes, void *stream) {
  CALL();
  USES_STREAM(stream);
  return fill(stream, (void *)address, byte, bytes);
}
// While a stream is captured it becomes a node of the graph, which has the memory when it runs.
static int is_node(void *stream, Address *address) {
  static Address last = (Address)1 << 46;
  if (is_default(stream) || alive("stream", stream)->state != 1) return 0;
  *address = last += PAGE;
  return 1;
}
Result cuMemAllocAsync(Address *address, size_t bytes, void *stream) {
  CALL();
  USES_STREAM(stream);
  if (is_node(stream, address)) return 0;
  return allocate((uintptr_t *)address, bytes, device_of(stream));
}
Result cuMemFreeAsync(Address address, void *stream) {
  CALL();
  USES_STREAM(stream);
  return is_node(stream, &address) ? 0 : release(address);
}
Result cuDeviceGetMemPool(void **pool, int device) {
  CALL();
  *pool = &contexts[device];
  return 0;
}
Result cuMemPoolGetAttribute(void *pool, int attribute, void *value) {
  CALL();
  if (attribute != POOL_RESERVED && attribute != POOL_RESERVED_HIGH) wrong("pool attribute %d", attribute);
  *(Address *)value = POOL_BYTES;
  return pool ? 0 : INVALID;
}
Result cuMemPoolSetAttribute(void *pool, int attribute, void *value) {
  CALL();
  if (attribute != POOL_RESERVED_HIGH || *(Address *)value != 0) wrong("pool attribute %d", attribute);
  return pool ? 0 : INVALID;
}
Result cuMemPoolTrimTo(void *pool, size_t bytes) {
  CALL();
  return pool && !bytes ? 0 : INVALID;
}
#ifdef FOR_FRAMEWORKS
#include "frameworks.h"
#endif
#ifdef FOR_WATCH
#include "watched_calls.h"
#endif
