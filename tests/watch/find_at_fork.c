// A program whose library has a lock while it asks for a function, and takes that at each fork, so that no child finds it taken. It
// began before libgpupool_watch.so did. With -DLIBRARY it is that library.

#ifdef LIBRARY
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
static pthread_mutex_t own = PTHREAD_MUTEX_INITIALIZER;
int found;
void find_with_lock(void) {
  pthread_mutex_lock(&own);
  found += dlsym(RTLD_NEXT, "cuMemFree_v2") != NULL;
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
enum { FORKS = 30 };
extern void find_with_lock(void);
extern int cuInit(unsigned);
static int is_over;
static void *finds(void *unused) {
  while (!__atomic_load_n(&is_over, __ATOMIC_RELAXED)) find_with_lock();
  return NULL;
}
int main(void) {
  pthread_t threads[2];
  // It waits for ever where it waits.
  alarm(20);
  CHECK(!cuInit(0), "it failed");
  for (int index = 0; index < 2; index++) pthread_create(&threads[index], NULL, finds, NULL);
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
