// A library that finds the driver's function by a handle of the driver's own.

#include <dlfcn.h>
#include <stddef.h>

int user_allocate(void **address, size_t bytes) {
  int (*allocate)(void **, size_t) = (int (*)(void **, size_t))dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuMemAlloc_v2");
  // Not the last that it does: it would not be the caller.
  return allocate(address, bytes) ? 1 : 0;
}
