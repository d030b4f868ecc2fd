// A program that is linked with a library which cannot be where it was linked for, as prelinked ones may be: the linker
// loads that below, at a negative base. With -DLIBRARY it is that library.

#ifdef LIBRARY
int displaced(void) { return 1; }
#else
#include "watched.h"
#include <link.h>

extern int displaced(void), cuInit(unsigned);

static int is_below(struct dl_phdr_info *info, size_t size, void *found) {
  *(int *)found |= strstr(info->dlpi_name, "libdisplaced.so") && (intptr_t)info->dlpi_addr < 0;
  return 0;
}

int main(void) {
  int found = 0;
  dl_iterate_phdr(is_below, &found);
  CHECK(found && displaced(), "it is where it was linked for");
  CHECK(!cuInit(0), "it failed");
  CHECK(dlsym(RTLD_NEXT, "malloc") == (void *)malloc, "the next is another");
  CHECK(dlsym(RTLD_NEXT, "cuMemAlloc_v2"), "%s", dlerror());
  return 0;
}
#endif
