// A program whose library gives back in each child what its parent took, as caches of a process do, and began before
// libgpupool_watch.so did: so its handler runs in the child before that one's. With -DLIBRARY it is that library.

#ifdef LIBRARY
#include <pthread.h>
#include <stddef.h>

extern int cuMemFree_v2(size_t);

int in_child;

static void releases(void) { in_child += !cuMemFree_v2(0x1000); }
__attribute__((constructor)) static void begin(void) { pthread_atfork(NULL, NULL, releases); }
#else
#include "watched.h"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FORKS = 1000 };
extern int in_child, cuMemFree_v2(Address);
static int is_over;

static void *releases(void *unused) {
  while (!__atomic_load_n(&is_over, __ATOMIC_RELAXED)) cuMemFree_v2(0x2000);
  return NULL;
}

int main(void) {
  pthread_t threads[2];
  for (int index = 0; index < 2; index++) pthread_create(&threads[index], NULL, releases, NULL);
  for (int turn = 0; turn < FORKS; turn++) {
    int status;
    pid_t child = fork();
    if (!child) _exit(in_child == 1 ? 0 : 3);
    // A child that waits does so for ever.
    alarm(20);
    CHECK(waitpid(child, &status, 0) == child && !status, "status %#x", status);
  }
  __atomic_store_n(&is_over, 1, __ATOMIC_RELAXED);
  for (int index = 0; index < 2; index++) pthread_join(threads[index], NULL);
  return 0;
}
#endif
