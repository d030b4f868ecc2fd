// A program that opens the driver for all, closes it, and calls what it has found among all: the linker keeps that open.

#include "watched.h"
#include <sys/mman.h>

int main(void) {
  for (int turn = 0; turn < 2; turn++) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    CHECK(driver, "%s", dlerror());
    Dl_info info;
    CHECK(dladdr(dlsym(driver, "cuInit"), &info), "it is in no file");
    int (*trim)(size_t, size_t) = (int (*)(size_t, size_t))dlsym(RTLD_DEFAULT, "cuMemPoolTrimTo");
    CHECK(trim && !trim(0, 0), "it failed");
    dlclose(driver);
    // Where it was nothing else is loaded.
    mmap(info.dli_fbase, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    CHECK(!trim(0, 0), "it failed");
  }
  return 0;
}
