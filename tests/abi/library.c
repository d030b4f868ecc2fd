// An ABI double of any library whose calls need a handle. The names come from the compiler's command line; one that is
// left out is a symbol that an old version lacks. DRIVER is the soname of the driver it works with, which knows the
// streams, STATUSES its names of statuses, and with USES_CONTEXT its streams must be of the current device, as cuDNN's
// and MIOpen's. SETTINGS are what can be set of a handle, VALUE(set, get, what a new handle has), POINTER(set, get) and
// ALLOCATOR(set), and with PINNED there is a handler of pinned memory. With UNFINISHED a creation that is refused leaves a
// handle. With CALLERS_STRUCT a handle is a struct of so many bytes of the caller's. NO_HANDLER is the status of a handle
// without a handler of memory that is asked for it, and HANDLER_STAYS the one of taking a handler off, where that is refused.

#include "double.h"

#ifdef NEEDS
// Refers to another library, so that this one cannot be loaded before it.
extern int NEEDS(int kind, int *value);
int uses(void) { return NEEDS(0, 0); }
#endif

#ifndef SETTINGS
#define SETTINGS
#endif
#define VALUE(set, get, new) AT_##set,
#define POINTER(set, get) AT_##set,
#define ALLOCATOR(set) AT_##set,
enum { SETTINGS COUNT };
#undef VALUE
#undef POINTER
#undef ALLOCATOR
#define VALUE(set, get, new) {#set, new},
#define POINTER(set, get) {#set, 0},
#define ALLOCATOR(set) {#set, 0},
static const struct { const char *name; intptr_t new; } settings[] = {SETTINGS {0}};
#undef VALUE
#undef POINTER
#undef ALLOCATOR

// A handle: its stream, its workspace if it is not the library's own, its handlers of device memory and of pinned memory if
// it has them, with how much is allocated, the memory that it keeps until it is destroyed, and its settings.
typedef struct {
  void *context;
  int (*allocate)(void *, void **, size_t, void *);
  int (*free)(void *, void *, size_t, void *);
  char name[64];
} Memory;
typedef struct {
  void *stream, *workspace;
  Memory memory, pinned;
  int live, live_pinned;
  void *kept;
  intptr_t settings[COUNT + 1];
} Handle;

// What the driver's double answers, or something else where there is no driver.
static int driver(const char *question, void *argument, int otherwise) {
  void *library = dlopen(DRIVER, RTLD_LAZY | RTLD_NOLOAD);
  int (*ask)(void *) = library ? (int (*)(void *))dlsym(library, question) : NULL;
  return ask ? ask(argument) : otherwise;
}

static void check_device(int device) {
  int current = driver("double_device", NULL, -1);
  if (current != device) wrong("a handle of device %d with device %d current", device, current);
}

static int of_driver(const char *function, uintptr_t argument, size_t bytes) {
  void *library = dlopen(DRIVER, RTLD_LAZY | RTLD_NOLOAD);
  return ((int (*)(uintptr_t, size_t))dlsym(library, function))(argument, bytes);
}

// Device memory as the library takes it when it works: by the handle's present handler, or else plain memory of the driver.
// Answers what the handler does.
int double_allocate(void *handle, void **pointer, size_t bytes) {
  Handle *own = handle;
  *pointer = NULL;
  int status = own->memory.allocate ? own->memory.allocate(own->memory.context, pointer, bytes, own->stream)
                                    : of_driver("cuMemAlloc_v2", (uintptr_t)pointer, bytes);
  own->live += !status;
  return status;
}
int double_free(void *handle, void *pointer, size_t bytes) {
  Handle *own = handle;
  int status = own->memory.free ? own->memory.free(own->memory.context, pointer, bytes, own->stream)
                                : of_driver("cuMemFree_v2", (uintptr_t)pointer, 0);
  own->live -= !status;
  return status;
}
// The stream of a call, for libraries whose calls take one.
void double_use(void *handle, void *stream) { ((Handle *)handle)->stream = stream; }
int double_keep(void *handle, size_t bytes) { return double_allocate(handle, &((Handle *)handle)->kept, bytes); }

// What some libraries hold during each call.
static pthread_mutex_t own = PTHREAD_MUTEX_INITIALIZER;
// A call that takes plain memory of the driver meanwhile, and asks for it as any program does.
int double_allocate_alone(void **pointer, size_t bytes) {
  pthread_mutex_lock(&own);
  int status = of_driver("cuMemAlloc_v2", (uintptr_t)pointer, bytes);
  pthread_mutex_unlock(&own);
  return status;
}

static void make(void **handle) {
#ifdef CALLERS_STRUCT
  _Static_assert(sizeof(Handle) <= CALLERS_STRUCT, "the struct has place for all that a handle has");
  if ((uintptr_t)handle % 16) wrong("%p is not aligned", handle);
  Handle *made = memset(handle, 0, CALLERS_STRUCT);
#else
  Handle *made = *handle = calloc(1, sizeof(Handle));
#endif
  for (int index = 0; index < COUNT; index++) made->settings[index] = settings[index].new;
  add("handle", (uintptr_t)made, 0, driver("double_device", NULL, -1));
}

#ifdef CREATE
int CREATE(void **handle) {
#ifdef UNFINISHED
  ALONE();
  make(handle);
#endif
  CALL();
  int status = driver("double_allocation_spoils", NULL, 0);
  if (status) return status;
#ifndef UNFINISHED
  make(handle);
#endif
  return 0;
}
#endif
#ifdef DESTROY
int DESTROY(void *handle) {
  pthread_mutex_lock(&own);
  pthread_mutex_unlock(&own);
  CALL();
  check_device(alive("handle", handle)->device);
  void *kept = ((Handle *)handle)->kept;
  if (kept && double_free(handle, kept, 0)) wrong("%p could not be given back", kept);
  removed(alive("handle", handle));
#ifdef CALLERS_STRUCT
  memset(handle, 0xDD, CALLERS_STRUCT);
#else
  free(handle);
#endif
  return 0;
}
#endif
#ifdef SET_STREAM
int SET_STREAM(void *handle, void *stream) {
  CALL();
  Object *object = alive("handle", handle);
  int device = driver("double_device_of", stream, -1);
  if (device == -2) wrong("%p is no stream, or no longer", stream);
  if (device >= 0 && device != object->device)
    wrong("a stream of device %d on a handle of device %d", device, object->device);
#ifdef USES_CONTEXT
  check_device(object->device);
#endif
  ((Handle *)handle)->stream = stream;
  ((Handle *)handle)->workspace = NULL;
  return 0;
}
#endif
#ifdef SET_WORKSPACE
int SET_WORKSPACE(void *handle, void *workspace, size_t bytes) {
  CALL();
  alive("handle", handle);
  if ((uintptr_t)workspace % 256) wrong("%p is not aligned", workspace);
  int mib = driver("double_memory_mib", workspace, 0);
  if (mib != bytes >> 20) wrong("%zu bytes of a workspace of %d MiB", bytes, mib);
  ((Handle *)handle)->workspace = workspace;
  return 0;
}
#endif
#ifdef GET_STREAM
int GET_STREAM(void *handle, void **stream) {
  CALL();
  alive("handle", handle);
  *stream = ((Handle *)handle)->stream;
  return 0;
}
#endif
// Sets a handler, or none, which is refused, with cuDSS's "not supported", while there is memory by the one that is set.
static int set_handler(Memory *own, const Memory *memory, int live) {
  if (memory && own->allocate) wrong("a second handler, with the first still there");
  if (memory && !(memory->allocate && memory->free && memory->name[0] && memchr(memory->name, 0, 64)))
    wrong("no whole handler");
  if (!memory && own->allocate && live) return 4;
  *own = memory ? *memory : (Memory){0};
  return 0;
}
#ifndef NO_HANDLER
#define NO_HANDLER 3
#endif
#ifdef SET_MEMORY
int SET_MEMORY(void *handle, const Memory *memory) {
  CALL();
  alive("handle", handle);
#ifdef HANDLER_STAYS
  if (!memory) return HANDLER_STAYS;
#endif
  return set_handler(&((Handle *)handle)->memory, memory, ((Handle *)handle)->live);
}
#endif
#ifdef SET_PINNED
int SET_PINNED(void *handle, const Memory *memory) {
  CALL();
  alive("handle", handle);
  return set_handler(&((Handle *)handle)->pinned, memory, ((Handle *)handle)->live_pinned);
}
#endif
#ifdef GET_PINNED
int GET_PINNED(void *handle, Memory *memory) {
  CALL();
  alive("handle", handle);
  *memory = ((Handle *)handle)->pinned;
  return memory->allocate ? 0 : 3;
}
#endif
#ifdef GET_MEMORY
int GET_MEMORY(void *handle, Memory *memory) {
  CALL();
  alive("handle", handle);
  *memory = ((Handle *)handle)->memory;
  return memory->allocate ? 0 : NO_HANDLER;
}
#endif
#define SET(set, parameters, value) \
  int set parameters { \
    CALL(); \
    alive("handle", handle); \
    ((Handle *)handle)->settings[AT_##set] = (intptr_t)value; \
    return 0; \
  }
#define GET(set, get, type) \
  int get(void *handle, type *value) { \
    CALL(); \
    alive("handle", handle); \
    *value = (type)((Handle *)handle)->settings[AT_##set]; \
    return 0; \
  }
#define VALUE(set, get, new) SET(set, (void *handle, int value), value) GET(set, get, int)
#define POINTER(set, get) SET(set, (void *handle, void *value), value) GET(set, get, void *)
#define ALLOCATOR(set) SET(set, (void *handle, void *allocate, void *free, void *context), allocate || free || context)
SETTINGS
#ifdef PROPERTY
int PROPERTY(int kind, int *value) { CALL(); *value = (const int[]){VERSION}[kind]; return 0; }
#endif
#ifdef VERSION_NUMBER
size_t VERSION_NUMBER(void) {
  const int version[] = {VERSION};
  return 10000 * version[0] + 100 * version[1] + version[2];
}
#endif
#ifdef VERSION_PARTS
int VERSION_PARTS(size_t *major, size_t *minor, size_t *patch) {
  CALL();
  const int version[] = {VERSION};
  *major = version[0];
  *minor = version[1];
  *patch = version[2];
  return 0;
}
#endif
#ifdef STATUS_NAME
const char *STATUS_NAME(int status) {
  static const struct { int code; const char *name; } names[] = {STATUSES};
  for (size_t index = 0; index < sizeof names / sizeof *names; index++)
    if (names[index].code == status) return names[index].name;
  return "unrecognized error code";
}
#endif
#ifdef LAST_ERROR
void LAST_ERROR(char *message, size_t length) {
  const char *said = getenv("FAKE_LAST_ERROR");
  strncpy(message, said ? said : "", length);
}
#endif

// For tests: the stream of a handle, its workspace if that is not the library's own, what of it is not as in a new one, and
// whether it was destroyed.
void *double_stream_of(void *handle) { return ((Handle *)handle)->stream; }
void *double_workspace_of(void *handle) { return ((Handle *)handle)->workspace; }
// What is not as in a new handle: the name of the function that set it, or null.
const char *double_changed(void *handle) {
  const Handle *own = handle;
  for (int index = 0; index < COUNT; index++)
    if (own->settings[index] != settings[index].new) return settings[index].name;
  return own->memory.allocate ? "device memory" : own->pinned.allocate ? "pinned memory" : NULL;
}
// Takes pinned memory by a handle's handler, 1, or gives it back, -1.
void double_pin(void *handle, int count) { ((Handle *)handle)->live_pinned += count; }
// How many handles there are.
int double_handles(void) {
  ALONE();
  int count = 0;
  for (const Object *object = objects; object; object = object->next) count += !strcmp(object->kind, "handle");
  return count;
}
int double_is_destroyed(void *handle) {
  ALONE();
  return !known("handle", (uintptr_t)handle);
}
