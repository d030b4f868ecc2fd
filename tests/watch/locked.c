// A program whose memory of the host is the driver's, too, by an allocator that has a lock meanwhile, as most have. With -DLIBRARY
// it is that.

#ifdef LIBRARY
#include <pthread.h>
#include <stddef.h>

extern void *__libc_malloc(size_t);
extern int cuMemAllocManaged(size_t *, size_t, unsigned);

int is_managed;
static pthread_mutex_t own = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local int is_asking;

void *malloc(size_t bytes) {
  size_t unused;
  if (is_managed && !is_asking) {
    is_asking = 1;
    pthread_mutex_lock(&own);
    cuMemAllocManaged(&unused, bytes, 1);
    pthread_mutex_unlock(&own);
    is_asking = 0;
  }
  return __libc_malloc(bytes);
}
#else
#include "watched.h"
#include "echo.h"

#include <pthread.h>
#include <unistd.h>

enum { TURNS = 20000 };
extern int is_managed, cuMemAlloc_v2(Address *, size_t), cuMemFree_v2(Address);

static void *takes_of_the_host(void *unused) {
  for (int turn = 0; turn < TURNS; turn++) free(malloc(16));
  return NULL;
}

int main(void) {
  Address address;
  pthread_t thread;
  // It waits for ever where it waits.
  alarm(20);
  pthread_create(&thread, NULL, takes_of_the_host, NULL);
  is_managed = 1;
  for (size_t turn = 1; turn <= TURNS; turn++) {
    CHECK(!cuMemAlloc_v2(&address, 4096) && !cuMemFree_v2(address), "it failed");
    echo.gives = turn * 0x1000;
  }
  pthread_join(thread, NULL);
  is_managed = 0;
  return 0;
}
#endif
