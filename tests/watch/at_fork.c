// A program whose library has handlers of forks, and began before libgpupool_watch.so did: so they run while that one keeps all
// others from asking the linker, and in the child before its own. With -DLIBRARY it is that library.

#ifdef LIBRARY
#include <pthread.h>
#include <stddef.h>

void (*before_fork)(void), (*after_fork)(void), (*in_child)(void);

static void before(void) { if (before_fork) before_fork(); }
static void after(void) { if (after_fork) after_fork(); }
static void child(void) { if (in_child) in_child(); }
__attribute__((constructor)) static void begin(void) { pthread_atfork(before, after, child); }
#else
#include "watched.h"
#include "echo.h"

#include <pthread.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MIB = 1 << 20 };
extern void (*before_fork)(void), (*after_fork)(void), (*in_child)(void);
extern int cuInit(unsigned), cuMemAlloc_v2(Address *, size_t), cuMemFree_v2(Address);

static int count, is_under_way, is_over;
static pthread_mutex_t own = PTHREAD_MUTEX_INITIALIZER;

static void take(void) { pthread_mutex_lock(&own); }
static void leave(void) { pthread_mutex_unlock(&own); }

static void allocates(void) {
  Address address;
  count += !cuMemAlloc_v2(&address, 4096);
}
static void finds(void) { count += dlsym(RTLD_NEXT, "cuMemFree_v2") != NULL; }
static void releases(void) { count += !cuMemFree_v2(0x1000); }

// The child has made so many calls, if any are to be told.
static void forks(int calls) {
  int status;
  // Who waits does so for ever.
  alarm(20);
  pid_t child = fork();
  if (!child) _exit(count == calls || !calls ? 0 : 3);
  CHECK(waitpid(child, &status, 0) == child && !status, "status %#x", status);
}

static void *does_again_and_again(void *does) {
  while (!__atomic_load_n(&is_over, __ATOMIC_RELAXED)) ((void (*)(void))does)();
  return NULL;
}
static void forks_beside(void (*does)(void), int times, int calls) {
  pthread_t threads[2];
  for (int index = 0; index < 2; index++) pthread_create(&threads[index], NULL, does_again_and_again, (void *)does);
  for (int turn = 0; turn < times; turn++) forks(calls);
  __atomic_store_n(&is_over, 1, __ATOMIC_RELAXED);
  for (int index = 0; index < 2; index++) pthread_join(threads[index], NULL);
}

static void a_handler_calls_the_driver(void) {
  before_fork = after_fork = allocates;
  in_child = finds;
  CHECK(!cuInit(0), "it failed");
  forks(2);
  CHECK(count == 2, "%d calls", count);
}

// As caches of a process give back in its child what it had.
static void releases_another(void) { cuMemFree_v2(0x2000); }
static void a_handler_calls_the_driver_in_the_child_alone(void) {
  in_child = releases;
  forks_beside(releases_another, 1000, 1);
}

// As allocators take their own lock at a fork, so that no child finds it taken.
static void allocates_with_lock(void) {
  Address address = 0;
  take();
  cuMemAlloc_v2(&address, 4096);
  cuMemFree_v2(address);
  leave();
}
static void a_handler_waits_for_who_calls_the_driver(void) {
  before_fork = take;
  after_fork = in_child = leave;
  // What the first call looks up is known from then on.
  allocates_with_lock();
  forks_beside(allocates_with_lock, 300, 0);
}

static void finds_with_lock(void) {
  take();
  finds();
  leave();
}
static void a_handler_waits_for_who_asks_for_a_function(void) {
  before_fork = take;
  after_fork = in_child = leave;
  CHECK(!cuInit(0), "it failed");
  forks_beside(finds_with_lock, 30, 0);
}

// A fork takes long, as that of a large process does.
static void waits(void) {
  __atomic_store_n(&is_under_way, 1, __ATOMIC_RELAXED);
  while (!__atomic_load_n(&is_over, __ATOMIC_RELAXED)) sched_yield();
}
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
static void is_of_who_asked_for_it(const char *name) {
  pthread_t thread;
  before_fork = waits;
  // What the first calls look up is known from then on.
  echo.gives = 0x1000;
  allocates();
  opens_and_allocates("libuser_runtime.so", 1);
  pthread_create(&thread, NULL, allocates_meanwhile, (void *)name);
  forks(0);
  pthread_join(thread, NULL);
  CHECK(held_by(name, 0).bytes >= MIB, "another has it");
}
static void memory_taken_meanwhile_is_of_who_calls_the_driver(void) { is_of_who_asked_for_it("libuser_driver.so"); }
static void memory_taken_meanwhile_is_of_who_calls_the_runtime(void) { is_of_who_asked_for_it("libuser_runtime.so"); }

static const Case cases[] = {
    CASE(a_handler_calls_the_driver), CASE(a_handler_calls_the_driver_in_the_child_alone),
    CASE(a_handler_waits_for_who_calls_the_driver), CASE(a_handler_waits_for_who_asks_for_a_function),
    CASE(memory_taken_meanwhile_is_of_who_calls_the_driver), CASE(memory_taken_meanwhile_is_of_who_calls_the_runtime)};

int main(int count, char **arguments) { return run_case(cases, sizeof cases / sizeof *cases, count, arguments); }
#endif
