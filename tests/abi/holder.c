// A library that takes device memory for itself, as NCCL does: what a process holds beside gpupool. Built under the name of a
// library that people know, or of a program.

#include "double.h"
#include <dlfcn.h>

static int of_driver(const char *name, uintptr_t first, size_t second) {
  void *driver = dlopen("libcuda.so.1", RTLD_NOW);
  int (*function)(uintptr_t, size_t) = (int (*)(uintptr_t, size_t))dlsym(driver, name);
  return function ? function(first, second) : -1;
}

// Returns the address of so much memory of the current context's device; 0 if there is none.
uintptr_t hold(size_t bytes) {
  uintptr_t address = 0;
  return of_driver("cuMemAlloc_v2", (uintptr_t)&address, bytes) ? 0 : address;
}

int let_go(uintptr_t address) { return of_driver("cuMemFree_v2", address, 0); }
