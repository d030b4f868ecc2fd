// A part of libcuda.c: contexts beside the devices' primary ones. A green context has a part of its device; one of a
// program's own, as cuCtxCreate makes it, shares nothing with the primary one. Their streams are of the device, but of
// another context, and a destroyed green context detaches its streams: they can be destroyed, and nothing else.

enum { MAX_CONTEXTS = 16, STREAM_DETACHED = 917 };

// The context that stands for a green one in calls that take a context; it has another address than the green one.
typedef struct { char green; Context converted; } GreenContext;

static GreenContext others[MAX_CONTEXTS];
static int other_count;

static Context *add_context(int device, int is_green) {
  check_device(device);
  if (other_count == MAX_CONTEXTS) wrong("more than %d contexts", MAX_CONTEXTS);
  Context *context = &others[other_count++].converted;
  *context = (Context){device, is_green};
  return context;
}

static GreenContext *green_of(Context *context) {
  return (GreenContext *)((char *)context - offsetof(GreenContext, converted));
}

static int is_primary(const Context *context) { return context >= contexts && context < contexts + devices(); }

static void check_context(Context *context) {
  int is_other = 0;
  for (int index = 0; index < other_count; index++) is_other |= context == &others[index].converted;
  if (context && !is_primary(context) && (!is_other || context->is_destroyed)) wrong("%p is no context", context);
}

static void check_green(GreenContext *green) {
  int is_known = green >= others && green < others + other_count;
  if (!is_known || !green->converted.is_green || green->converted.is_destroyed) wrong("%p is no green context", green);
}

// The context that a stream was made in.
static Context *context_of(const void *stream) {
  if (is_default(stream)) return current;
  Object *object = alive("stream", stream);
  return object->context ? object->context : &contexts[object->device];
}

// What every call with a stream answers first.
static int stream_status(const void *stream) {
  Context *context = context_of(stream);
  return context && context->is_destroyed ? STREAM_DETACHED : 0;
}
#define NEEDS_STREAM(stream) do { int refused = stream_status(stream); if (refused) return refused; } while (0)
#define USES_STREAM(stream) \
  NEEDS_STREAM(stream); \
  do { int refused = use_beside_capture(stream); if (refused) return refused; } while (0)

Result cuCtxFromGreenCtx(Context **context, GreenContext *green) {
  CALL();
  check_green(green);
  *context = &green->converted;
  return 0;
}
Result cuGreenCtxStreamCreate(void **stream, GreenContext *green, unsigned flags, int priority) {
  CALL();
  check_green(green);
  if (flags != NON_BLOCKING) return INVALID;
  *stream = malloc(64);
  Object *object = add("stream", (uintptr_t)*stream, 0, green->converted.device);
  object->flags = (int)flags;
  object->context = &green->converted;
  return 0;
}
Result cuGreenCtxDestroy(GreenContext *green) {
  CALL();
  check_green(green);
  green->converted.is_destroyed = 1;
  for (Object *object = objects; object; object = object->next)
    if (object->context == &green->converted && object->state) object->state = 2;
  return 0;
}
Result cuStreamGetCtx(void *stream, Context **context) {
  CALL();
  NEEDS_STREAM(stream);
  *context = context_of(stream);
  return *context ? 0 : INVALID_CONTEXT;
}
#ifndef WITHOUT_GREEN_CONTEXTS
Result cuStreamGetCtx_v2(void *stream, Context **context, GreenContext **green) {
  CALL();
  NEEDS_STREAM(stream);
  Context *own = context_of(stream);
  if (!own) return INVALID_CONTEXT;
  *context = own->is_green ? &contexts[own->device] : own;
  *green = own->is_green ? green_of(own) : NULL;
  return 0;
}
#endif

// As cuGreenCtxCreate, which takes a descriptor of the part that the context is to have.
GreenContext *double_green_context(int device) {
  is_retained[device] = 1;
  contexts[device].device = device;
  return green_of(add_context(device, 1));
}
// As cuCtxCreate, which also makes it current.
Context *double_own_context(int device) { return add_context(device, 0); }
