// An ABI double of any library whose calls need a handle. The names come from the compiler's command line; one that is
// left out is a symbol that an old version lacks. DRIVER is the soname of the driver it works with, which knows the
// streams, STATUSES its names of statuses, and with USES_CONTEXT its streams must be of the current device, as cuDNN's
// and MIOpen's.

#include "double.h"

#ifdef NEEDS
// Refers to another library, so that this one cannot be loaded before it.
extern int NEEDS(int kind, int *value);
int uses(void) { return NEEDS(0, 0); }
#endif

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

#ifdef CREATE
int CREATE(void **handle) {
  CALL();
  int status = driver("double_allocation_spoils", NULL, 0);
  if (status) return status;
  *handle = calloc(1, 64);
  add("handle", (uintptr_t)*handle, 0, driver("double_device", NULL, -1));
  return 0;
}
#endif
#ifdef DESTROY
int DESTROY(void *handle) {
  CALL();
  check_device(alive("handle", handle)->device);
  removed(alive("handle", handle));
  free(handle);
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
  ((void **)handle)[0] = stream;
  ((void **)handle)[1] = NULL;
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
  ((void **)handle)[1] = workspace;
  return 0;
}
#endif
#ifdef GET_STREAM
int GET_STREAM(void *handle, void **stream) {
  CALL();
  alive("handle", handle);
  *stream = *(void **)handle;
  return 0;
}
#endif
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

// For tests: the stream of a handle, its workspace if that is not the library's own, and whether it was destroyed.
void *double_stream_of(void *handle) { return ((void **)handle)[0]; }
void *double_workspace_of(void *handle) { return ((void **)handle)[1]; }
int double_is_destroyed(void *handle) { return !known("handle", (uintptr_t)handle); }
