// A program whose library calls the driver at each fork, and began before libgpupool_watch.so did: so its handlers run while
// that one keeps all others from asking the linker. With -DLIBRARY it is that library.

#ifdef LIBRARY
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>

extern int cuMemAlloc_v2(size_t *, size_t);
int at_fork, in_child;

static void allocates(void) {
  size_t address;
  at_fork += !cuMemAlloc_v2(&address, 4096);
}
static void finds(void) { in_child += dlsym(RTLD_NEXT, "cuMemFree_v2") != NULL; }
__attribute__((constructor)) static void begin(void) { pthread_atfork(allocates, allocates, finds); }
#else
#include "watched.h"

#include <sys/wait.h>
#include <unistd.h>

extern int at_fork, in_child, cuInit(unsigned);

int main(void) {
  int status;
  CHECK(!cuInit(0), "it failed");
  pid_t child = fork();
  if (!child) _exit(at_fork == 1 && in_child == 1 ? 0 : 3);
  CHECK(waitpid(child, &status, 0) == child && !status && at_fork == 2, "status %#x, %d", status, at_fork);
  return 0;
}
#endif
