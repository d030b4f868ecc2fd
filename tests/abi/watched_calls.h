// What programs and libgpupool_watch.so call that gpupool does not: a part of libcuda.c, with -DFOR_WATCH.
// Memory of a context goes with it, physical memory has as many handles as were made of it, and what a call takes that
// nobody counts is nothing.

// What was allocated in a context.
static void end_memory_of(const Context *context) {
  for (Object *object = objects, *next; object; object = next) {
    next = object->next;
    if (strcmp(object->kind, "memory") || object->context != context) continue;
    used[object->device] -= object->bytes;
    free((void *)object->address);
    removed(object);
  }
}

static Result create_context(Context **context, int device) {
  current = *context = add_context(device, 0);
  return 0;
}
Result cuCtxCreate_v2(Context **context, unsigned flags, int device) { CALL(); return create_context(context, device); }
Result cuCtxCreate_v3(Context **context, void *affinity, int count, unsigned flags, int device) {
  CALL();
  return create_context(context, device);
}
Result cuCtxCreate_v4(Context **context, void *parameters, unsigned flags, int device) {
  CALL();
  return create_context(context, device);
}
Result cuCtxDestroy_v2(Context *context) {
  CALL();
  check_context(context);
  if (is_primary(context)) return INVALID_CONTEXT;
  end_memory_of(context);
  context->is_destroyed = 1;
  if (current == context) current = NULL;
  return 0;
}
Result cuDevicePrimaryCtxRelease_v2(int device) {
  CALL();
  check_device(device);
  if (!is_retained[device]) return INVALID_CONTEXT;
  if (!--is_retained[device]) end_memory_of(&contexts[device]);
  return 0;
}
// Who has retained it has it still, with nothing in it.
Result cuDevicePrimaryCtxReset_v2(int device) {
  CALL();
  check_device(device);
  end_memory_of(&contexts[device]);
  return 0;
}

// As programs call them that were built with an old CUDA.
Result cuDevicePrimaryCtxRelease(int device) { return cuDevicePrimaryCtxRelease_v2(device); }
Result cuDevicePrimaryCtxReset(int device) { return cuDevicePrimaryCtxReset_v2(device); }

static Result allocate_on(Address *address, size_t bytes, int device) {
  Result status = allocate((uintptr_t *)address, bytes, device);
  if (!status) alive("memory", (void *)*address)->context = current;
  return status;
}
Result cuMemAllocPitch_v2(Address *address, size_t *pitch, size_t width, size_t height, unsigned element) {
  CALL();
  NEEDS_CONTEXT();
  *pitch = (width + 511) / 512 * 512;
  return allocate_on(address, *pitch * height, current->device);
}
Result cuMemAllocManaged(Address *address, size_t bytes, unsigned flags) {
  CALL();
  NEEDS_CONTEXT();
  return allocate_on(address, bytes, current->device);
}
// Memory of a pool is in no context.
Result cuMemAllocAsync_ptsz(Address *address, size_t bytes, void *stream) {
  CALL();
  USES_STREAM(stream);
  return allocate((uintptr_t *)address, bytes, device_of(stream));
}
// A pool may also have memory of the host.
static Context pool_of_host;
static const unsigned of_host = 1;
Result cuMemPoolCreate(Context **pool, const Properties *properties) {
  CALL();
  if (properties->location.kind != ON_NODE) wrong("a pool of a device, which has one");
  *pool = &pool_of_host;
  return 0;
}

Result cuMemAllocFromPoolAsync(Address *address, size_t bytes, Context *pool, void *stream) {
  CALL();
  USES_STREAM(stream);
  if (pool == &pool_of_host) {
    // Of the device it takes nothing.
    Result status = allocate((uintptr_t *)address, 0, device_of(stream));
    if (!status) alive("memory", (void *)*address)->flags = of_host;
    return status;
  }
  if (is_node(stream, address)) return 0;
  return allocate((uintptr_t *)address, bytes, pool->device);
}
Result cuMemAllocFromPoolAsync_ptsz(Address *address, size_t bytes, Context *pool, void *stream) {
  CALL();
  USES_STREAM(stream);
  return allocate((uintptr_t *)address, bytes, pool->device);
}
Result cuMemFreeAsync_ptsz(Address address, void *stream) { CALL(); USES_STREAM(stream); return release(address); }

Result cuPointerGetAttribute(void *answer, int attribute, Address address) {
  enum { MEMORY_TYPE = 2, DEVICE_ORDINAL = 9, HOST = 1, DEVICE = 2 };
  CALL();
  if (attribute != MEMORY_TYPE && attribute != DEVICE_ORDINAL) wrong("attribute %d of a pointer", attribute);
  const Object *memory = alive("memory", (void *)address);
  int type = memory->flags & of_host ? HOST : DEVICE;
  *(int *)answer = attribute == MEMORY_TYPE ? type : memory->device;
  return 0;
}

Result cuMemRetainAllocationHandle(Address *handle, void *address) {
  CALL();
  for (Object *object = objects; object; object = object->next)
    if (!strcmp(object->kind, "mapping") && overlap(object, (uintptr_t)address, 1)) {
      object->memory->state--;
      *handle = object->memory->address;
      return 0;
    }
  return INVALID;
}

#define TAKES(name, ...) Result name(void **made, __VA_ARGS__) { CALL(); NEEDS_CONTEXT(); *made = &contexts; return 0; }
TAKES(cuArrayCreate_v2, void *description)
TAKES(cuArray3DCreate_v2, void *description)
TAKES(cuMipmappedArrayCreate, void *description, unsigned levels)
TAKES(cuModuleLoad, const char *file)
TAKES(cuModuleLoadData, const void *image)
TAKES(cuModuleLoadDataEx, const void *image, unsigned count, void *options, void **values)
TAKES(cuModuleLoadFatBinary, const void *image)
TAKES(cuLibraryLoadData, const void *code, void *options, void **values, unsigned count)
TAKES(cuLibraryLoadFromFile, const char *file, void *options, void **values, unsigned count)
TAKES(cuGraphInstantiate, void *graph, void **node, char *text, size_t length)
TAKES(cuGraphInstantiate_v2, void *graph, void **node, char *text, size_t length)
TAKES(cuGraphInstantiateWithFlags, void *graph, Address flags)
TAKES(cuGraphInstantiateWithParams, void *graph, void *parameters)
TAKES(cuGraphInstantiateWithParams_ptsz, void *graph, void *parameters)
