// Processes that fork, replace themselves or end, on the driver of echo.c: one case for each name.

#include "watched.h"
#include "echo.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

extern int cuMemAlloc_v2(Address *, size_t), cuMemFree_v2(Address), cuMemCreate(Address *, size_t, void *, Address);

enum { MIB = 1 << 20, FORKS = 300 };

static Address allocated(size_t bytes) {
  Address address = 0;
  static _Thread_local size_t last;
  echo.gives = last += 0x1000;
  CHECK(!cuMemAlloc_v2(&address, bytes), "it failed");
  return address;
}
static void release(Address address) {
  CHECK(!cuMemFree_v2(address), "it failed");
}

static void succeeds(pid_t child) {
  int status;
  CHECK(waitpid(child, &status, 0) == child && !status, "status %#x", status);
}

static void it_ends_with_memory(void) {
  Address address = allocated(5 * MIB);
  allocated(3 * MIB / 2);
  release(address);
}

static void it_takes_none(void) {}

static void a_child_passes_calls_on(void) {
  allocated(MIB);
  pid_t child = fork();
  if (!child) {
    int before = echo.calls;
    release(allocated(MIB));
    echo.status = 2;
    Address address;
    CHECK(cuMemAlloc_v2(&address, MIB) == 2, "another answer");
    CHECK(echo.calls == before + 3, "%d calls", echo.calls - before);
    CHECK(dlsym(RTLD_DEFAULT, "cuMemAlloc_v2") && !dlsym(RTLD_DEFAULT, "cuMemNothing"), "it finds something else");
    // As programs end: what the parent has registered for its end runs here too.
    exit(0);
  }
  succeeds(child);
  HOLDS(NULL, 0, MIB, 1);
}

// By the system's own call, of which the C library tells nobody.
static void a_child_that_no_handler_of_forks_is_told_of(void) {
  allocated(MIB);
  pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
  if (!child) exit(0);
  succeeds(child);
}

// By the number of its process it is its parent, where each is the first of a namespace.
static void a_child_has_its_parent_s_number(void) {
  // Not every machine lets a program have one.
  if (unshare(CLONE_NEWUSER | CLONE_NEWPID)) return it_ends_with_memory();
  pid_t first = fork();
  if (!first) {
    allocated(MIB);
    if (unshare(CLONE_NEWPID)) exit(0);
    pid_t child = fork();
    if (!child) exit(getpid() == getppid() + 1 ? 0 : 3);
    succeeds(child);
    exit(0);
  }
  succeeds(first);
}

// As servers fork, which let their workers use the GPU.
static void a_child_of_one_that_had_no_memory_counts(void) {
  void *found = dlsym(RTLD_DEFAULT, "cuMemAlloc_v2");
  CHECK(found, "it is missing");
  pid_t child = fork();
  if (!child) {
    Address address = allocated(MIB);
    HOLDS("lives", 0, MIB, 1);
    release(address);
    exit(0);
  }
  succeeds(child);
  HOLDS(NULL, 0, 0, 0);
}

static int is_over;
static void *allocates(void *unused) {
  while (!__atomic_load_n(&is_over, __ATOMIC_RELAXED)) release(allocated(MIB));
  return NULL;
}
static void *opens_and_closes(void *unused) {
  while (!__atomic_load_n(&is_over, __ATOMIC_RELAXED)) {
    void *library = dlopen("libuser_driver.so", RTLD_NOW | RTLD_LOCAL);
    CHECK(library, "%s", dlerror());
    int (*allocate)(void **, size_t) = (int (*)(void **, size_t))dlsym(library, "user_allocate");
    void *address;
    CHECK(!allocate(&address, MIB), "it failed");
    dlclose(library);
  }
  return NULL;
}
// Whatever the others are in the middle of.
static void fork_at_first_beside(void *(*other)(void *), int (*child_s)(void)) {
  pthread_t threads[2];
  for (int index = 0; index < 2; index++) pthread_create(&threads[index], NULL, other, NULL);
  for (int turn = 0; turn < FORKS; turn++) {
    pid_t child = fork();
    if (!child) exit(child_s());
    succeeds(child);
  }
  __atomic_store_n(&is_over, 1, __ATOMIC_RELAXED);
  for (int index = 0; index < 2; index++) pthread_join(threads[index], NULL);
}
static void fork_beside(void *(*other)(void *), int (*child_s)(void)) {
  // From now on children only pass calls on.
  release(allocated(MIB));
  fork_at_first_beside(other, child_s);
}
static int allocates_once(void) {
  echo.meanwhile = NULL;
  release(allocated(MIB));
  return 0;
}
static void *asks_who_holds(void *unused) {
  while (!__atomic_load_n(&is_over, __ATOMIC_RELAXED)) held_by(NULL, 0);
  return NULL;
}
static int asks_once(void) {
  held_by(NULL, 0);
  return 0;
}
static int finds_functions(void) {
  return dlsym(RTLD_DEFAULT, "cuMemFree_v2") && !dlsym(RTLD_NEXT, "cuMemNothing") ? 0 : 3;
}
// It cannot end as programs do: the linker's own lock may be held, by those that open libraries.
static int allocates_and_leaves(void) { _exit(allocates_once()); }
static int opens_a_library(void) { return dlopen("libuser_driver.so", RTLD_NOW | RTLD_LOCAL) ? 0 : 3; }
static void children_of_one_whose_threads_allocate(void) { fork_beside(allocates, allocates_once); }
static void children_that_open_a_library_beside_threads_that_allocate(void) { fork_beside(allocates, opens_a_library); }
static void children_that_find_functions_beside_threads_that_allocate(void) {
  fork_beside(allocates, finds_functions);
}
static void children_of_one_whose_threads_open_libraries(void) { fork_beside(opens_and_closes, allocates_and_leaves); }
static void children_that_ask_who_holds_beside_threads_that_allocate(void) { fork_beside(allocates, asks_once); }
// They count, as nothing was before.
static void children_of_one_whose_threads_only_ask_who_holds(void) {
  fork_at_first_beside(asks_who_holds, allocates_and_leaves);
  allocated(MIB);
}

// A handler of signals may fork wherever the thread is.
static volatile int handled;
static void forks(int signal) {
  pid_t child = fork();
  if (!child) _exit(0);
  succeeds(child);
  handled++;
}
static void a_handler_of_signals_forks(void) {
  struct itimerval each_millisecond = {{0, 1000}, {0, 1000}};
  signal(SIGALRM, forks);
  setitimer(ITIMER_REAL, &each_millisecond, NULL);
  while (handled < FORKS) release(allocated(MIB));
}

// What arrives meanwhile is handled before a fork has returned.
static void a_handler_of_signals_forks_in_the_middle_of_a_fork(void) {
  struct itimerval each_millisecond = {{0, 1000}, {0, 1000}};
  signal(SIGALRM, forks);
  setitimer(ITIMER_REAL, &each_millisecond, NULL);
  while (handled < FORKS) {
    pid_t child = fork();
    if (!child) _exit(0);
    succeeds(child);
  }
}

// A program may wait for any signal, also one that a fault raises otherwise.
static void what_a_program_has_blocked_stays_so(void) {
  sigset_t all, now;
  int signal;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, NULL);
  raise(SIGTRAP);
  release(allocated(MIB));
  pthread_sigmask(SIG_SETMASK, NULL, &now);
  CHECK(sigismember(&now, SIGTRAP) && sigismember(&now, SIGALRM), "it is blocked no more");
  CHECK(!sigwait(&all, &signal) && signal == SIGTRAP, "signal %d", signal);
}

// Another may end the process there.
static void ends(int signal) { exit(0); }
static void a_handler_of_signals_ends_the_process(void) {
  for (int turn = 0; turn < FORKS / 10; turn++) {
    pid_t child = fork();
    if (!child) {
      struct itimerval soon = {{0, 0}, {0, 1000 + turn * 37}};
      // Where it can tell what it held is chance.
      CHECK(freopen("/dev/null", "w", stderr), "there is no such file");
      signal(SIGALRM, ends);
      setitimer(ITIMER_REAL, &soon, NULL);
      while (1) release(allocated(MIB));
    }
    succeeds(child);
  }
}

// It may do so where memory of the host is taken.
extern void *__libc_malloc(size_t);
static int more;
void *malloc(size_t bytes) {
  if (more && !--more) raise(SIGALRM);
  return __libc_malloc(bytes);
}
static void a_handler_of_signals_ends_the_process_where_memory_is_taken(void) {
  int is_more = 1;
  for (int turn = 1; is_more; turn++) {
    pid_t child = fork();
    if (!child) {
      CHECK(freopen("/dev/null", "w", stderr), "there is no such file");
      allocated(MIB);
      // Of what is loaded it takes a list anew.
      CHECK(dlopen("libuser_driver.so", RTLD_NOW | RTLD_LOCAL), "%s", dlerror());
      signal(SIGALRM, ends);
      more = turn;
      allocated(MIB);
      _exit(9);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child, "it is gone");
    is_more = WEXITSTATUS(status) != 9;
    CHECK(!status || !is_more, "status %#x", status);
  }
}

// What a filter of system calls has a program do itself, it is told by a signal, as of a fault.
#ifdef __x86_64__
static void changes_signals_itself(int signal, siginfo_t *info, void *context) {
  ucontext_t *found = context;
  greg_t *registers = found->uc_mcontext.gregs;
  uint64_t *blocked = (uint64_t *)&found->uc_sigmask, *set = (uint64_t *)registers[REG_RSI];
  if (registers[REG_RDX]) *(uint64_t *)registers[REG_RDX] = *blocked;
  if (set && registers[REG_RDI] == SIG_BLOCK) *blocked |= *set;
  if (set && registers[REG_RDI] == SIG_UNBLOCK) *blocked &= ~*set;
  if (set && registers[REG_RDI] == SIG_SETMASK) *blocked = *set;
  registers[REG_RAX] = 0;
  handled++;
}
#endif
static void what_changes_signals_may_be_the_program_s_own(void) {
#ifdef __x86_64__
  struct sigaction action = {.sa_sigaction = changes_signals_itself, .sa_flags = SA_SIGINFO | SA_NODEFER};
  struct sock_filter traps[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rt_sigprocmask, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog program = {sizeof traps / sizeof *traps, traps};
  sigaction(SIGSYS, &action, NULL);
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  // Not every machine lets a program have one.
  int is_filtered = !prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
  release(allocated(MIB));
  CHECK(handled || !is_filtered, "nothing was changed");
#else
  release(allocated(MIB));
#endif
}

// While the report is written other threads go on.
static int ends_of_pipe[2];
static void handles(int unused) {}
static char state_of_first_thread(void) {
  char path[64], text[256] = "", *name;
  snprintf(path, sizeof path, "/proc/self/task/%d/stat", getpid());
  int file = open(path, O_RDONLY);
  CHECK(file >= 0 && read(file, text, sizeof text - 1) > 0 && (name = strrchr(text, ')')), "%s says nothing", path);
  close(file);
  return name[2];
}
static void *handles_and_reads(void *unused) {
  static char read_there[1 << 17];
  // Until the report waits for who reads it.
  while (state_of_first_thread() != 'S') sched_yield();
  signal(SIGPIPE, handles);
  while (read(ends_of_pipe[0], read_there, sizeof read_there) > 0) {}
  return NULL;
}
static void is_handled(void) {
  if (signal(SIGPIPE, SIG_DFL) != handles) _exit(3);
}
static void another_thread_changes_what_the_report_leaves_out(void) {
  pthread_t thread;
  // It is called after the report.
  atexit(is_handled);
  CHECK(!pipe(ends_of_pipe) && dup2(ends_of_pipe[1], STDERR_FILENO) >= 0, "there is no pipe");
  fcntl(ends_of_pipe[1], F_SETFL, O_NONBLOCK);
  while (write(ends_of_pipe[1], "", 1) == 1) {}
  fcntl(ends_of_pipe[1], F_SETFL, 0);
  allocated(MIB);
  pthread_create(&thread, NULL, handles_and_reads, NULL);
}

static char *own_path;
static void it_becomes_another(void) {
  allocated(MIB);
  execl(own_path, own_path, "it_ends_with_memory", (char *)NULL);
  CHECK(0, "it cannot be executed");
}

// As some start what brings its own C library.
static void it_is_known_by_its_name(void) {
  allocated(MIB);
  HOLDS("lives", 0, MIB, 1);
}
static void the_loader_starts_it(void) {
  Dl_info loader;
  CHECK(dladdr((void *)getauxval(AT_BASE), &loader), "it has no loader");
  execl(loader.dli_fname, loader.dli_fname, own_path, "it_is_known_by_its_name", (char *)NULL);
  CHECK(0, "%s cannot be executed", loader.dli_fname);
}

static void it_starts_another_and_waits(void) {
  allocated(7 * MIB);
  pid_t child = vfork();
  if (!child) {
    execl(own_path, own_path, "it_takes_none", (char *)NULL);
    _exit(3);
  }
  succeeds(child);
  HOLDS(NULL, 0, 7 * MIB, 1);
}

static const Case cases[] = {
    CASE(it_ends_with_memory), CASE(it_takes_none), CASE(a_child_passes_calls_on),
    CASE(a_child_that_no_handler_of_forks_is_told_of),
    CASE(a_child_has_its_parent_s_number),
    CASE(a_child_of_one_that_had_no_memory_counts), CASE(children_of_one_whose_threads_allocate),
    CASE(children_that_open_a_library_beside_threads_that_allocate),
    CASE(children_that_find_functions_beside_threads_that_allocate), CASE(children_of_one_whose_threads_open_libraries),
    CASE(children_that_ask_who_holds_beside_threads_that_allocate),
    CASE(children_of_one_whose_threads_only_ask_who_holds),
    CASE(a_handler_of_signals_forks), CASE(a_handler_of_signals_forks_in_the_middle_of_a_fork),
    CASE(what_a_program_has_blocked_stays_so), CASE(a_handler_of_signals_ends_the_process),
    CASE(a_handler_of_signals_ends_the_process_where_memory_is_taken), CASE(what_changes_signals_may_be_the_program_s_own),
    CASE(another_thread_changes_what_the_report_leaves_out), CASE(it_becomes_another),
    CASE(it_is_known_by_its_name), CASE(the_loader_starts_it), CASE(it_starts_another_and_waits)};

int main(int count, char **arguments) {
  own_path = arguments[0];
  return run_case(cases, sizeof cases / sizeof *cases, count, arguments);
}
