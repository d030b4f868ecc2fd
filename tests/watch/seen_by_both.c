// An allocation by each way, where another library stands in for the same: both must see it, and see it once. Linked
// with the driver of echo.c, or with -DLOADED without it.

#include "watched.h"
#include "echo.h"

typedef int (*Allocate)(Address *, size_t);
typedef int (*Free)(Address);
typedef int (*Find)(const char *, void **, int, unsigned long long, int *);

int main(void) {
  void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), *runtime = dlopen("libcudart.so.12", RTLD_NOW);
  Echo *echo = (Echo *)dlsym(driver, "echo");
  int *allocations = (int *)dlsym(RTLD_DEFAULT, "stands_in_allocations");
  int *frees = (int *)dlsym(RTLD_DEFAULT, "stands_in_frees");
  CHECK(echo && runtime && allocations && frees, "%s", dlerror());
  Find find = (Find)dlsym(driver, "cuGetProcAddress_v2");
  void *found[3][2] = {{dlsym(driver, "cuMemAlloc_v2"), dlsym(driver, "cuMemFree_v2")}};
  CHECK(!find("cuMemAlloc", &found[1][0], 12000, 0, NULL), "missing");
  CHECK(!find("cuMemFree", &found[1][1], 12000, 0, NULL), "missing");
#ifndef LOADED
  extern int cuMemAlloc_v2(Address *, size_t), cuMemFree_v2(Address);
  found[2][0] = (void *)cuMemAlloc_v2;
  found[2][1] = (void *)cuMemFree_v2;
#else
  found[2][0] = dlsym(runtime, "cudaMalloc");
  found[2][1] = dlsym(runtime, "cudaFree");
#endif
  // One that stands in by the linker alone sees only who is linked with it.
  for (int way = dlsym(RTLD_DEFAULT, "stands_in_by_linker") ? 2 : 0; way < 3; way++) {
    Address address = 0;
    uint64_t peak = held_by(NULL, 0).peak;
    *allocations = *frees = echo->calls = 0;
    echo->gives = 0x1000;
    CHECK(!((Allocate)found[way][0])(&address, 4096) && address == 0x1000, "by way %d", way);
    CHECK(*allocations == 1 && echo->calls == 1, "by way %d: %d, %d", way, *allocations, echo->calls);
    HOLDS(NULL, 0, 4096, 1);
    CHECK(held_by(NULL, 0).peak <= peak + 4096, "by way %d it was counted twice for a time", way);
    echo->gives = 0;
    CHECK(!((Free)found[way][1])(address), "by way %d", way);
    CHECK(*frees == 1 && echo->calls == 2, "by way %d: %d, %d", way, *frees, echo->calls);
    HOLDS(NULL, 0, 0, 0);
  }
  return 0;
}
