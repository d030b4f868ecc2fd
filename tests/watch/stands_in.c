// A library that is preloaded too, and stands in for dlsym and for functions of the driver, as those do that limit a
// container's memory: it finds the linker's dlsym by its version, gives programs its own functions, and passes calls on
// to what that dlsym gives. With -DEVERYBODYS it gives programs what everybody sees, as HAMi-core does. With -DBY_LINKER it stands in for two functions by their names alone, and asks for the next
// ones.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

typedef void *(*Dlsym)(void *, const char *);
typedef unsigned long long Address;

#ifdef __x86_64__
#define VERSION "GLIBC_2.2.5"
#else
#define VERSION "GLIBC_2.17"
#endif

int stands_in_allocations, stands_in_frees;

#ifdef BY_LINKER
int stands_in_by_linker;
static void *driver_s(const char *symbol) {
  void *found = dlsym(RTLD_NEXT, symbol);
  return found;
}
#else
static Dlsym real_dlsym(void) {
  static Dlsym real;
  if (!real) real = (Dlsym)dlvsym(RTLD_NEXT, "dlsym", VERSION);
  return real;
}

static void *driver_s(const char *symbol) {
  return real_dlsym()(dlopen("libcuda.so.1", RTLD_LAZY), symbol);
}
#endif

int cuMemAlloc_v2(Address *address, size_t bytes) {
  static int (*next)(Address *, size_t);
  if (!next) next = (int (*)(Address *, size_t))driver_s("cuMemAlloc_v2");
  stands_in_allocations++;
  return next(address, bytes);
}
int cuMemFree_v2(Address address) {
  static int (*next)(Address);
  if (!next) next = (int (*)(Address))driver_s("cuMemFree_v2");
  stands_in_frees++;
  return next(address);
}
#ifndef BY_LINKER
static const struct { const char *symbol; void *own; } own[] = {
    {"cuMemAlloc_v2", (void *)cuMemAlloc_v2}, {"cuMemFree_v2", (void *)cuMemFree_v2}};

int cuGetProcAddress_v2(const char *name, void **place, int version, unsigned long long flags, int *status) {
  int (*next)(const char *, void **, int, unsigned long long, int *) =
      (int (*)(const char *, void **, int, unsigned long long, int *))driver_s("cuGetProcAddress_v2");
  for (int index = 0; index < 2; index++)
    if (!strncmp(own[index].symbol, name, strlen(own[index].symbol) - strlen("_v2"))) {
      *place = own[index].own;
      return 0;
    }
  int answer = next(name, place, version, flags, status);
  if (!answer && !strcmp(name, "cuGetProcAddress")) *place = (void *)cuGetProcAddress_v2;
  return answer;
}

void *dlsym(void *handle, const char *symbol) {
  if (handle == RTLD_NEXT) return real_dlsym()(handle, symbol);
  for (int index = 0; index < 2; index++)
    if (!strcmp(own[index].symbol, symbol))
#ifdef EVERYBODYS
      return real_dlsym()(RTLD_DEFAULT, symbol);
#else
      return own[index].own;
#endif
  if (!strcmp(symbol, "cuGetProcAddress_v2")) return (void *)cuGetProcAddress_v2;
  return real_dlsym()(handle, symbol);
}
#endif
