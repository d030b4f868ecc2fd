// A program whose memory of the host is the driver's, too: as some have it whose kernels read what they allocate. With
// -DLIBRARY it is what gives it that. On the driver of echo.c, which gives what it is told to, it is only asked.

#ifdef LIBRARY
#include <stddef.h>

extern void *__libc_malloc(size_t);
extern int cuMemAllocManaged(size_t *, size_t, unsigned);

int is_managed;
static _Thread_local int is_asking;

void *malloc(size_t bytes) {
  size_t unused;
  if (is_managed && !is_asking) {
    is_asking = 1;
    cuMemAllocManaged(&unused, bytes, 1);
    is_asking = 0;
  }
  return __libc_malloc(bytes);
}
#else
#include "watched.h"
#include "echo.h"

#include <unistd.h>

enum { BLOCKS = 1000 };
extern int is_managed, cuMemAlloc_v2(Address *, size_t);

int main(void) {
  Address address;
  // It waits for ever where it waits.
  alarm(20);
  is_managed = 1;
  for (size_t index = 1; index <= BLOCKS; index++) {
    echo.gives = index * 0x1000;
    CHECK(!cuMemAlloc_v2(&address, 4096), "it failed");
  }
  CHECK(held_by(NULL, 0).count >= BLOCKS, "%d blocks", (int)held_by(NULL, 0).count);
  is_managed = 0;
  return 0;
}
#endif
