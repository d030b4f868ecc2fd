// What stands for CUDA's runtime: a library by its name, or, with -DSTATIC, a part of the program, as NVIDIA's compiler
// links it. It opens the driver itself and asks it for each function.

#include <dlfcn.h>
#include <stddef.h>

#ifdef STATIC
#define PUBLIC static
#else
#define PUBLIC
#endif

typedef int (*GetProcAddress)(const char *, void **, int, unsigned long long, int *);

static void *runtime_find(const char *name, int version, unsigned long long flags) {
  void *driver = dlopen("libcuda.so.1", RTLD_NOW), *found = NULL;
  GetProcAddress find = (GetProcAddress)dlsym(driver, "cuGetProcAddress_v2");
  if (find && !find("cuGetProcAddress", (void **)&found, 12000, flags, NULL)) find = (GetProcAddress)found;
  return find && !find(name, &found, version, flags, NULL) ? found : NULL;
}

PUBLIC int cudaMalloc(void **address, size_t bytes) {
  int (*allocate)(void **, size_t) = (int (*)(void **, size_t))runtime_find("cuMemAlloc", 12000, 0);
  return allocate(address, bytes);
}
PUBLIC int cudaFree(void *address) {
  int (*release)(void *) = (int (*)(void *))runtime_find("cuMemFree", 12000, 0);
  return release(address);
}
PUBLIC int cudaGetDriverEntryPoint(const char *name, void **place, unsigned long long flags, int *status) {
  *place = runtime_find(name, 12050, flags);
  if (status) *status = !*place;
  return 0;
}
PUBLIC int cudaGetDriverEntryPointByVersion(
    const char *name, void **place, unsigned version, unsigned long long flags, int *status) {
  *place = runtime_find(name, (int)version, flags);
  if (status) *status = !*place;
  return 0;
}
