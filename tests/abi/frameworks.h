// What frameworks call of the driver's beyond gpupool, as far as their memory needs it: cuda.core and Numba.
// A part of libcuda.c, with -DFOR_FRAMEWORKS.

// How cuda.bindings finds every function; it does without those that it never calls.
Result cuGetProcAddress_v2(const char *symbol, void **function, int version, Address flags, int *found) {
  char name[128];
  void *self = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  snprintf(name, sizeof name, "%s_v2", symbol);
  // Of this one the bindings call both, the second by the version that brought it.
  int is_first = !strcmp(symbol, "cuStreamGetCtx") && version < 12050;
  *function = is_first ? NULL : dlsym(self, name);
  if (!*function) *function = dlsym(self, symbol);
  if (found) *found = !*function;
  dlclose(self);
  return *function ? 0 : 500;
}
Result cuDevicePrimaryCtxRelease_v2(int device) { CALL(); return 0; }
Result cuDevicePrimaryCtxReset_v2(int device) { CALL(); return 0; }

// A stack of contexts, for each thread.
static _Thread_local Context *below[8];
static _Thread_local int depth;
Result cuCtxPushCurrent_v2(Context *context) {
  CALL();
  if (depth == 8) wrong("contexts pushed and not popped");
  below[depth++] = current;
  current = context;
  return 0;
}
Result cuCtxPopCurrent_v2(Context **context) {
  CALL();
  NEEDS_CONTEXT();
  *context = current;
  current = depth ? below[--depth] : NULL;
  return 0;
}

// Numba's memory is the machine's own, as gpupool's is.
Result cuMemcpyHtoD_v2(Address to, const void *from, size_t bytes) { CALL(); memcpy((void *)to, from, bytes); return 0; }
Result cuMemcpyDtoH_v2(void *to, Address from, size_t bytes) { CALL(); memcpy(to, (void *)from, bytes); return 0; }
Result cuMemcpyPeer(Address to, Context *to_context, Address from, Context *from_context, size_t bytes) {
  CALL();
  if (!to_context || !from_context) wrong("a copy between contexts of which one is none");
  memcpy((void *)to, (void *)from, bytes);
  return 0;
}
static Object *memory_at(Address address) {
  for (Object *object = objects; object; object = object->next)
    if ((!strcmp(object->kind, "memory") || !strcmp(object->kind, "mapping") || !strcmp(object->kind, "pinned memory")) &&
        overlap(object, address, 1))
      return object;
  return NULL;
}
enum { MEMORY_TYPE = 2, IS_MANAGED = 8, DEVICE_ORDINAL = 9, LEGACY_IPC = 10 };
Result cuPointerGetAttribute(int *answer, int attribute, Address address) {
  CALL();
  Object *memory = memory_at(address);
  if (!memory) return INVALID;
  switch (attribute) {
    case MEMORY_TYPE: *answer = memory->device >= MAX_DEVICES ? 1 : 2; break;
    case IS_MANAGED: *answer = 0; break;
    case DEVICE_ORDINAL: *answer = memory->device >= MAX_DEVICES ? 0 : memory->device; break;
    case LEGACY_IPC: *answer = !strcmp(memory->kind, "memory"); break;
    default: wrong("attribute %d of a pointer", attribute);
  }
  return 0;
}
Result cuPointerGetAttributes(unsigned count, const int *attributes, int **answers, Address address) {
  CALL();
  for (unsigned index = 0; index < count; index++)
    if (cuPointerGetAttribute(answers[index], attributes[index], address)) return INVALID;
  return 0;
}
Result cuMemGetAddressRange_v2(Address *base, size_t *bytes, Address address) {
  CALL();
  Object *memory = memory_at(address);
  if (!memory) return INVALID;
  *base = memory->address;
  *bytes = memory->bytes;
  return 0;
}
Result cuIpcGetMemHandle(Address *handle, Address address) {
  CALL();
  memset(handle, 0, 64);
  *handle = alive("memory", (void *)address)->address;
  return 0;
}
