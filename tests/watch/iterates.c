// A library that stands in for the linker's dl_iterate_phdr, and asks for that at its first use.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>

typedef int (*Call)(struct dl_phdr_info *, size_t, void *);

int dl_iterate_phdr(Call call, void *data) {
  static int (*next)(Call, void *);
  if (!next) next = (int (*)(Call, void *))dlsym(RTLD_NEXT, "dl_iterate_phdr");
  return next(call, data);
}
