// A program whose fork takes long, as that of a large process does, while another thread takes memory. With -DLIBRARY it is the
// library whose handler waits for that: it began before libgpupool_watch.so did, which by then lets nobody ask the linker.

#ifdef LIBRARY
#include <pthread.h>
#include <time.h>

int is_under_way, is_over;

static void waits(void) {
  __atomic_store_n(&is_under_way, 1, __ATOMIC_RELAXED);
  for (int turn = 0; turn < 5000 && !__atomic_load_n(&is_over, __ATOMIC_RELAXED); turn++)
    nanosleep(&(struct timespec){0, 1000000}, NULL);
}
__attribute__((constructor)) static void begin(void) { pthread_atfork(waits, NULL, NULL); }
#else
#include "watched.h"
#include "echo.h"

#include <pthread.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MIB = 1 << 20 };
extern int is_under_way, is_over, cuMemAlloc_v2(Address *, size_t);

static void opens_and_allocates(const char *name, size_t bytes) {
  void *address, *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  CHECK(library, "%s", dlerror());
  int (*allocate)(void **, size_t) = (int (*)(void **, size_t))dlsym(library, "user_allocate");
  echo.gives += 0x1000;
  CHECK(!allocate(&address, bytes), "it failed");
}
static void *allocates_meanwhile(void *name) {
  while (!__atomic_load_n(&is_under_way, __ATOMIC_RELAXED)) sched_yield();
  opens_and_allocates(name, MIB);
  __atomic_store_n(&is_over, 1, __ATOMIC_RELAXED);
  return NULL;
}

int main(int count, char **arguments) {
  pthread_t thread;
  int status;
  Address address;
  // What the first calls look up is known from then on.
  echo.gives = 0x1000;
  CHECK(!cuMemAlloc_v2(&address, 4096), "it failed");
  opens_and_allocates("libuser_runtime.so", 1);
  pthread_create(&thread, NULL, allocates_meanwhile, arguments[1]);
  pid_t child = fork();
  if (!child) _exit(0);
  CHECK(waitpid(child, &status, 0) == child && !status, "status %#x", status);
  pthread_join(thread, NULL);
  CHECK(held_by(arguments[1], 0).bytes >= MIB, "another has it");
  return 0;
}
#endif
