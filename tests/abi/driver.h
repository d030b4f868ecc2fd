// What the doubles of the two drivers share: devices, streams, captures, events and memory, which is the machine's own,
// so that tests can write to it. CUDA's and HIP's numbers of the statuses below are the same. FAKE_CAPTURE_STATUS and
// FAKE_CAPTURE_MODE are what the drivers write, whatever streams and threads have.
//
// FAKE_DEVICES, FAKE_DEVICE_NAME, FAKE_MEMORY_MIB for each device, FAKE_FREE_MIB whatever is taken. FAKE_VMM=1 is
// virtual memory, a memfd for each piece of physical memory, and FAKE_ROOM_GIB the most addresses to be had at a time;
// with FAKE_HOST_VMM=1 also on the host's NUMA nodes. It can be exported unless FAKE_SHAREABLE=0, and registered by network
// cards with FAKE_RDMA=1; FAKE_REFUSES_SHAREABLE=1 and FAKE_REFUSES_RDMA=1 refuse it though the attributes say so.

#include "double.h"
#ifndef OF_ANY_DEVICE
#define OF_ANY_DEVICE 0
#endif
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { INVALID = 1, OUT_OF_MEMORY = 2, INVALID_DEVICE = 101, NOT_SUPPORTED = 801 };
enum { UNSUPPORTED_IN_CAPTURE = 900, IMPLICIT_IN_CAPTURE = 906 };
enum { INTERPROCESS = 4, IMPORTED = 1 << 8, INVALID_CONTEXT_OF_EVENT = 201 };
enum { MAX_DEVICES = 8, RELAXED = 2, NON_BLOCKING = 1, PAGE = 2 << 20 };
// The host's NUMA nodes are places like devices, after those; the last has what is pinned in one piece.
// The state of physical memory without a handle; each one beside the first takes one off.
enum { RELEASED = 1 };
enum { ON_DEVICE = 1, ON_NODE = 3, NODES = 2, PINNED = MAX_DEVICES + NODES, PLACES };

typedef struct { int kind, id; } Location;
typedef struct { int kind, handle_kind; Location location; void *meta_data; unsigned char flags[8]; } Properties;
typedef struct { Location location; int flags; } Access;

static size_t used[PLACES];
static _Thread_local int capture_mode;

// The calling thread's current device; -1 if it has none.
static int current_device(void);

static int devices(void) { return (int)number("FAKE_DEVICES", 1); }
static size_t total_bytes(void) { return (size_t)number("FAKE_MEMORY_MIB", 1024) << 20; }
static size_t free_bytes(int device) {
  long said = number("FAKE_FREE_MIB", -1);
  return said < 0 ? total_bytes() - used[device] : (size_t)said << 20;
}

static void check_device(int device) {
  if (device < 0 || device >= devices()) wrong("no device %d", device);
}

// A string that fits into a buffer with its final zero, as both drivers want of it.
static int put_text(char *buffer, int length, const char *text) {
  if (length <= (int)strlen(text)) return INVALID;
  strcpy(buffer, text);
  return 0;
}

static int put_name(char *name, int length, int device) {
  const char *said = getenv("FAKE_DEVICE_NAME");
  check_device(device);
  return put_text(name, length, said ? said : "double");
}

static int put_pci_bus_id(char *id, int length, int device) {
  char text[16];
  check_device(device);
  snprintf(text, sizeof text, "0000:%02X:00.0", 0x18 + device);
  return put_text(id, length, text);
}

// Streams. 0 and 1 are the legacy default stream, 2 the thread's own.
static int is_default(const void *stream) { return (uintptr_t)stream <= 2; }
static int is_legacy(const void *stream) { return (uintptr_t)stream <= 1; }
static int device_of(const void *stream) {
  return is_default(stream) ? current_device() : alive("stream", stream)->device;
}

static Object *captured(void) {
  for (Object *object = objects; object; object = object->next)
    if (!strcmp(object->kind, "stream") && object->state) return object;
  return NULL;
}

// The captured blocking stream beside which the legacy default stream must not be used: of the current device, with HIP of
// any.
static Object *captured_beside(const void *stream) {
  for (Object *object = is_legacy(stream) ? objects : NULL; object; object = object->next) {
    int counts = !(object->flags & NON_BLOCKING) && (OF_ANY_DEVICE || object->device == current_device());
    if (!strcmp(object->kind, "stream") && object->state && counts) return object;
  }
  return NULL;
}

// What any use of a stream answers first, other than the question whether it is captured. A use of the legacy default
// stream spoils the capture of a blocking one, in every mode.
static int use_beside_capture(const void *stream) {
  Object *other = captured_beside(stream);
  if (other) other->state = 2;
  return other ? IMPLICIT_IN_CAPTURE : 0;
}

// What waits for the whole device spoils captures in every mode, what allocates in any but the relaxed one.
static int spoil_captures(void) {
  Object *stream = captured();
  if (!stream) return 0;
  stream->state = 2;
  return UNSUPPORTED_IN_CAPTURE;
}
static int allocation_spoils(void) { return capture_mode == RELAXED ? 0 : spoil_captures(); }

static int capture_status(const void *stream, int *status) {
  const char *said = getenv("FAKE_CAPTURE_STATUS");
  if (captured_beside(stream)) return IMPLICIT_IN_CAPTURE;
  *status = said && *said ? atoi(said) : is_default(stream) ? 0 : alive("stream", stream)->state;
  return 0;
}

static int exchange_mode(int *mode) {
  int previous = (int)number("FAKE_CAPTURE_MODE", capture_mode);
  if (*mode < 0 || *mode > RELAXED) return INVALID;
  capture_mode = *mode;
  *mode = previous;
  return 0;
}

static int create_stream(void **stream, unsigned flags) {
  *stream = malloc(64);
  add("stream", (uintptr_t)*stream, 0, current_device())->flags = (int)flags;
  return 0;
}

static int destroy_object(const char *kind, void *address) {
  removed(alive(kind, address));
  free(address);
  return 0;
}

static int create_event(void **event, unsigned flags) {
  if (flags != 2 && flags != (2 | INTERPROCESS)) wrong("an event that keeps the time");
  *event = malloc(64);
  add("event", (uintptr_t)*event, 0, current_device())->flags = (int)flags;
  return 0;
}

// A name of an event: the process and the event's address. No work of the double's waits for any.
typedef struct { char bytes[64]; } EventName;
static const char EVENT_NAME[] = "double's event";

static int export_event(EventName *name, const void *event) {
  if (!(alive("event", event)->flags & INTERPROCESS)) wrong("%p is no event for other processes", event);
  memset(name, 0, sizeof *name);
  snprintf(name->bytes, sizeof name->bytes, "%s %d %p", EVENT_NAME, (int)getpid(), event);
  return 0;
}

static int import_event(void **event, EventName name) {
  int process = 0;
  if (strncmp(name.bytes, EVENT_NAME, strlen(EVENT_NAME))) return INVALID;
  sscanf(name.bytes + strlen(EVENT_NAME), "%d", &process);
  if (process == (int)getpid()) return INVALID_CONTEXT_OF_EVENT;
  *event = malloc(64);
  add("event", (uintptr_t)*event, 0, current_device())->flags = IMPORTED;
  return 0;
}

static int record(void *event, void *stream) {
  Object *object = alive("event", event);
  int device = device_of(stream);
  if (object->flags & IMPORTED) wrong("an event of another process is recorded");
  if (object->device != device) wrong("a stream of device %d on an event of device %d", device, object->device);
  return 0;
}

// Memory.
static int taken(int device, size_t bytes) {
  if (bytes > free_bytes(device)) return OUT_OF_MEMORY;
  used[device] += bytes;
  return 0;
}

static int allocate(uintptr_t *address, size_t bytes, int device) {
  int status = allocation_spoils();
  if (!status) status = taken(device, bytes);
  if (status) return status;
  *address = (uintptr_t)aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  add("memory", *address, bytes, device);
  return 0;
}

static int release(uintptr_t address) {
  Object *memory = alive("memory", (void *)address);
  int device = current_device();
  if (memory->device != device) wrong("memory of device %d with device %d current", memory->device, device);
  int status = allocation_spoils();
  if (status) return status;
  used[memory->device] -= memory->bytes;
  removed(memory);
  free((void *)address);
  return 0;
}

// Virtual memory.
static int is_shareable(void) { return number("FAKE_SHAREABLE", 1) != 0; }
static int is_rdma(void) { return number("FAKE_RDMA", 0) != 0; }
static int has_virtual_memory(void) { return number("FAKE_VMM", 0) != 0; }

// The place that a location is; -1 for a node where nodes have no virtual memory.
static int place_of(Location location) {
  if (location.kind == ON_NODE) {
    if (location.id < 0 || location.id >= NODES) wrong("no node %d", location.id);
    return number("FAKE_HOST_VMM", 0) ? MAX_DEVICES + location.id : -1;
  }
  if (location.kind != ON_DEVICE) wrong("a location of kind %d", location.kind);
  if (location.id < 0 || location.id >= devices()) wrong("no device %d", location.id);
  return location.id;
}

static int check_properties(const Properties *properties) {
  enum { POSIX_FD = 1, RDMA = 1 };
  if (properties->kind != 1 || properties->handle_kind & ~POSIX_FD) wrong("not plain memory");
  if (properties->handle_kind && !is_shareable()) wrong("memory to export, which the device does not announce");
  if (properties->flags[RDMA] && !is_rdma()) wrong("memory for RDMA, which the device does not announce");
  if (properties->handle_kind && number("FAKE_REFUSES_SHAREABLE", 0)) return NOT_SUPPORTED;
  if (properties->flags[RDMA] && number("FAKE_REFUSES_RDMA", 0)) return NOT_SUPPORTED;
  return place_of(properties->location) < 0 ? INVALID : 0;
}

static int reserve(uintptr_t *address, size_t bytes, size_t alignment) {
  if (!has_virtual_memory()) return NOT_SUPPORTED;
  if (!bytes || bytes % PAGE || alignment & (alignment - 1)) return INVALID;
  if (bytes > (size_t)number("FAKE_ROOM_GIB", 1 << 20) << 30) return OUT_OF_MEMORY;
  void *place = mmap(NULL, bytes + PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (place == MAP_FAILED) return OUT_OF_MEMORY;
  *address = ((uintptr_t)place + PAGE - 1) / PAGE * PAGE;
  add("reservation", *address, bytes, -1);
  return 0;
}

static int overlap(const Object *object, uintptr_t address, size_t bytes) {
  return object->address < address + bytes && address < object->address + object->bytes;
}

static int free_reservation(uintptr_t address, size_t bytes) {
  Object *reservation = alive("reservation", (void *)address);
  if (reservation->bytes != bytes) wrong("%zu bytes of a reservation of %zu", bytes, reservation->bytes);
  for (Object *object = objects; object; object = object->next)
    if (!strcmp(object->kind, "mapping") && overlap(object, address, bytes)) wrong("%#lx is mapped", object->address);
  removed(reservation);
  munmap((void *)address, bytes);
  return 0;
}

static int create_physical(uintptr_t *handle, size_t bytes, const Properties *properties) {
  static uintptr_t last = 0x1000;
  int status = check_properties(properties);
  if (status) return status;
  int device = place_of(properties->location);
  status = allocation_spoils();
  if (!status) status = bytes % PAGE ? INVALID : taken(device, bytes);
  if (status) return status;
  Object *memory = add("physical memory", *handle = ++last, bytes, device);
  memory->flags = memfd_create("double", 0);
  memory->context = properties->handle_kind ? memory : NULL;
  return ftruncate(memory->flags, (off_t)bytes);
}

static int export_physical(int *descriptor, uintptr_t handle, int kind, unsigned long long flags) {
  Object *memory = alive("physical memory", (void *)handle);
  if (memory->state == RELEASED || kind != 1 || flags) wrong("not an export of live memory to a descriptor");
  if (!memory->context) return INVALID;
  *descriptor = fcntl(memory->flags, F_DUPFD_CLOEXEC, 0);
  return *descriptor < 0 ? OUT_OF_MEMORY : 0;
}

// As large as the file is. What another process has taken of a device is counted there alone.
static int import_physical(uintptr_t *handle, int descriptor, int kind) {
  static uintptr_t last = 0x1000000;
  struct stat status;
  if (kind != 1) wrong("not an import of a descriptor");
  if (fstat(descriptor, &status)) return INVALID;
  Object *memory = add("physical memory", *handle = ++last, (size_t)status.st_size, PINNED);
  memory->context = memory;
  memory->flags = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  return memory->flags < 0 ? OUT_OF_MEMORY : 0;
}

static void end_physical(Object *memory) {
  if (memory->mappings || memory->state != RELEASED) return;
  if (memory->device != PINNED) used[memory->device] -= memory->bytes;
  close(memory->flags);
  removed(memory);
}

static int release_physical(uintptr_t handle) {
  Object *memory = alive("physical memory", (void *)handle);
  if (memory->state == RELEASED) wrong("%#lx was released before", handle);
  memory->state++;
  end_physical(memory);
  return 0;
}

static int map(uintptr_t address, size_t bytes, size_t offset, uintptr_t handle, unsigned long long flags) {
  Object *memory = alive("physical memory", (void *)handle);
  if (memory->state == RELEASED || memory->bytes != bytes || offset || flags) wrong("not the whole of live memory");
  int is_reserved = 0;
  for (Object *object = objects; object; object = object->next) {
    int is_within = object->address <= address && address + bytes <= object->address + object->bytes;
    if (!strcmp(object->kind, "reservation") && is_within) is_reserved = 1;
    if (!strcmp(object->kind, "mapping") && overlap(object, address, bytes)) wrong("%#lx is mapped already", address);
  }
  if (!is_reserved) wrong("%#lx is not reserved", address);
  void *place = mmap((void *)address, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, memory->flags, 0);
  if (place == MAP_FAILED) return OUT_OF_MEMORY;
  add("mapping", address, bytes, memory->device)->memory = memory;
  memory->mappings++;
  return 0;
}

// Does something to each mapping of a range that consists of whole ones, of no more than so many.
static int each_mapping(uintptr_t address, size_t bytes, int most, void (*act)(Object *)) {
  for (uintptr_t end = address + bytes; address < end; most--) {
    Object *mapping = alive("mapping", (void *)address);
    if (!most) return INVALID;
    if (mapping->bytes > end - address) wrong("a part of a mapping");
    address += mapping->bytes;
    act(mapping);
  }
  return 0;
}

static void open_mapping(Object *mapping) {
  mprotect((void *)mapping->address, mapping->bytes, PROT_READ | PROT_WRITE);
}

static void unmap_mapping(Object *mapping) {
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  mmap((void *)mapping->address, mapping->bytes, PROT_NONE, flags, -1, 0);
  mapping->memory->mappings--;
  end_physical(mapping->memory);
  removed(mapping);
}

static int set_access(uintptr_t address, size_t bytes, const Access *access, size_t count, int most) {
  for (size_t index = 0; index < count; index++) {
    Location location = access[index].location;
    if (access[index].flags != 3) wrong("not read and write access");
    if (location.kind == ON_DEVICE && (location.id < 0 || location.id >= devices())) return INVALID_DEVICE;
    if (place_of(location) < 0) return INVALID;
  }
  return count ? each_mapping(address, bytes, most, open_mapping) : INVALID;
}

// Pinned memory of the host in one piece: for every context and for kernels, which are flags 1 and 2.
static int pin(uintptr_t address, size_t bytes, unsigned flags) {
#ifndef FOR_FRAMEWORKS
  // Portable and mapped, as gpupool asks for it.
  if (flags != 3) wrong("pinned memory with the flags %u", flags);
#endif
  for (Object *object = objects; object; object = object->next)
    if (!strcmp(object->kind, "pinned memory") && overlap(object, address, bytes)) wrong("%#lx is pinned", address);
  int status = allocation_spoils();
  if (!status) status = taken(PINNED, bytes);
  if (!status) add("pinned memory", address, bytes, PINNED);
  return status;
}

static int unpin(void *address) {
  Object *memory = alive("pinned memory", address);
  int status = allocation_spoils();
  if (status) return status;
  used[PINNED] -= memory->bytes;
  removed(memory);
  return 0;
}

static int allocate_pinned(void **address, size_t bytes, unsigned flags) {
  *address = aligned_alloc(PAGE, bytes);
  int status = pin((uintptr_t)*address, bytes, flags);
  if (status) free(*address);
  return status;
}

static int free_pinned(void *address) {
  int status = unpin(address);
  if (!status) free(address);
  return status;
}

// Work with memory of a device, which must be there. It is done at once, unless the stream is captured.
static int begins_work(void *stream, uintptr_t address, size_t bytes) {
  for (uintptr_t end = address + bytes, next; address < end; address = next) {
    next = 0;
    for (Object *object = objects; object; object = object->next)
      if ((!strcmp(object->kind, "memory") || !strcmp(object->kind, "mapping")) && overlap(object, address, 1))
        next = object->address + object->bytes;
    if (!next) wrong("%#lx is no memory of a device", address);
  }
  return is_default(stream) || !alive("stream", stream)->state;
}

static int copy(void *stream, void *to, const void *from, const void *memory, size_t bytes) {
  if (begins_work(stream, (uintptr_t)memory, bytes)) memcpy(to, from, bytes);
  return 0;
}

static int fill(void *stream, void *memory, int byte, size_t bytes) {
  if (begins_work(stream, (uintptr_t)memory, bytes)) memset(memory, byte, bytes);
  return 0;
}

// For the doubles of libraries, and for tests.
int double_device(void) { return current_device(); }
// -1 for a default stream, -2 for none.
int double_device_of(void *stream) {
  ALONE();
  Object *object = known("stream", (uintptr_t)stream);
  return is_default(stream) ? -1 : object ? object->device : -2;
}
// How large this memory is; 0 if it is none.
int double_memory_mib(void *address) {
  ALONE();
  Object *memory = known("memory", (uintptr_t)address);
  return memory ? memory->bytes >> 20 : 0;
}
int double_allocation_spoils(void) {
  ALONE();
  return allocation_spoils();
}
// 1 begins a capture, with the next number, and 0 ends it.
void double_set_capture(void *stream, int state) {
  static int last;
  ALONE();
  Object *object = alive("stream", stream);
  if (state == 1) object->mappings = ++last;
  object->state = state;
}
void double_join_capture(void *stream, void *captured) {
  ALONE();
  alive("stream", stream)->mappings = alive("stream", captured)->mappings;
  alive("stream", stream)->state = alive("stream", captured)->state;
}
int double_capture(void *stream) {
  ALONE();
  return alive("stream", stream)->state;
}
unsigned long double_used(int device) { return used[device]; }
unsigned long double_used_of_host(void) { return used[PINNED] + used[MAX_DEVICES] + used[MAX_DEVICES + 1]; }
