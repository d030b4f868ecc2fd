// A program whose library has a lock while it calls the driver, as allocators do, and takes that at each fork, so that no child
// finds it taken. It began before libgpupool_watch.so did. With -DLIBRARY it is that library.

#ifdef LIBRARY
#include <pthread.h>
#include <stddef.h>

extern int cuMemAlloc_v2(size_t *, size_t), cuMemFree_v2(size_t);
static pthread_mutex_t own = PTHREAD_MUTEX_INITIALIZER;

void allocate_with_lock(void) {
  size_t address = 0;
  pthread_mutex_lock(&own);
  cuMemAlloc_v2(&address, 4096);
  cuMemFree_v2(address);
  pthread_mutex_unlock(&own);
}
static void take(void) { pthread_mutex_lock(&own); }
static void leave(void) { pthread_mutex_unlock(&own); }
__attribute__((constructor)) static void begin(void) { pthread_atfork(take, leave, leave); }
#else
#include "watched.h"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FORKS = 300 };
extern void allocate_with_lock(void);
extern int cuInit(unsigned);
static int is_over;

static void *allocates(void *unused) {
  while (!__atomic_load_n(&is_over, __ATOMIC_RELAXED)) allocate_with_lock();
  return NULL;
}

int main(void) {
  pthread_t threads[2];
  CHECK(!cuInit(0), "it failed");
  // What the first call looks up is known from then on.
  allocate_with_lock();
  for (int index = 0; index < 2; index++) pthread_create(&threads[index], NULL, allocates, NULL);
  for (int turn = 0; turn < FORKS; turn++) {
    int status;
    pid_t child = fork();
    if (!child) _exit(0);
    CHECK(waitpid(child, &status, 0) == child && !status, "status %#x", status);
  }
  __atomic_store_n(&is_over, 1, __ATOMIC_RELAXED);
  for (int index = 0; index < 2; index++) pthread_join(threads[index], NULL);
  return 0;
}
#endif
