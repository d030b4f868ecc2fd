// What libgpupool_watch.so asks of who gives way, and what becomes of the call, on the driver of echo.c: one case for
// each name.

#include "watched.h"
#include "echo.h"

#include <pthread.h>
#include <sys/mman.h>

typedef int (*Function)(size_t, size_t, size_t, size_t, size_t, size_t, size_t, size_t);
#define FIND(symbol, name, since)
#define CALL(symbol, name, since) extern int symbol(size_t, size_t, size_t, size_t, size_t, size_t, size_t, size_t);
CALLS
#undef CALL
#define CALL(symbol, name, since) {#symbol, symbol},
static const struct { const char *symbol; Function function; } known[] = {CALLS};

extern int cuGetProcAddress(const char *, Function *, int, size_t);
extern uint64_t (*member_gives)(int device, uint64_t bytes);
extern int member_joins(void);
extern void *member_finds(void *handle, const char *symbol);

enum { OUT_OF_MEMORY = 2, MIB = 1 << 20 };
#define GIB ((size_t)1 << 30)

// Who gives way: what it was asked, how much it gives each time, and at which time the driver has enough.
static struct { int asked, device; uint64_t bytes[8], gives; int enough; } member;

static uint64_t gives(int device, uint64_t bytes) {
  member.device = device;
  member.bytes[member.asked++ % 8] = bytes;
  if (member.asked == member.enough) echo.status = 0;
  return member.gives;
}

static void joins(void) {
  member_gives = gives;
  CHECK(member_joins(), "it cannot join");
}

static void begin(int enough, uint64_t bytes_given) {
  memset(&member, 0, sizeof member);
  member.enough = enough;
  member.gives = bytes_given;
  echo.calls = 0;
  echo.status = OUT_OF_MEMORY;
  echo.gives = 0x1000;
  echo.free = MIB;
  echo.total = 10 * GIB;
}

static int allocates(size_t bytes) {
  size_t address = 0;
  return cuMemAlloc_v2((size_t)&address, bytes, 0, 0, 0, 0, 0, 0);
}

static void what_is_missing_is_asked_for_and_a_little_more(void) {
  joins();
  begin(1, 100 * MIB);
  CHECK(!allocates(100 * MIB), "the call failed though memory was given back");
  CHECK(member.asked == 1 && member.device == 0 && echo.calls == 2, "%d %d", member.asked, echo.calls);
  CHECK(member.bytes[0] == (100 - 1 + 32) * MIB, "%llu bytes", (unsigned long long)member.bytes[0]);
  HOLDS(NULL, 0, 100 * MIB, 1);
  // Where enough is free, but not in one piece.
  begin(1, MIB);
  echo.free = GIB;
  echo.gives = 0x2000;
  CHECK(!allocates(100 * MIB) && member.bytes[0] == 32 * MIB, "%llu bytes", (unsigned long long)member.bytes[0]);
}

static void as_long_as_it_does_not_help_more_is_asked_for(void) {
  joins();
  begin(3, MIB);
  CHECK(!allocates(2 * MIB) && member.asked == 3 && echo.calls == 4, "%d %d", member.asked, echo.calls);
  const uint64_t wanted[] = {(1 + 32) * MIB, (1 + 512) * MIB, MIB + 2 * GIB};
  CHECK(!memcmp(wanted, member.bytes, sizeof wanted), "%llu bytes", (unsigned long long)member.bytes[0]);
  begin(4, MIB);
  CHECK(allocates(MIB) == OUT_OF_MEMORY && member.asked == 3 && echo.calls == 4, "%d %d", member.asked, echo.calls);
}

static void where_nothing_is_given_the_driver_s_answer_comes_back(void) {
  joins();
  begin(8, 0);
  CHECK(allocates(MIB) == OUT_OF_MEMORY && member.asked == 1 && echo.calls == 2, "%d %d", member.asked, echo.calls);
  HOLDS(NULL, 0, 0, 0);
}

static void what_was_given_for_another_thread_s_call_is_enough_for_both(void) {
  joins();
  begin(1, 0);
  CHECK(!allocates(MIB), "there was memory by then");
}

static void more_than_the_device_has_is_asked_of_nobody(void) {
  joins();
  begin(1, GIB);
  CHECK(allocates(10 * GIB + 1) == OUT_OF_MEMORY && !member.asked && echo.calls == 1, "%d", member.asked);
  // Nor of another device, or of a thread without one.
  const int devices[] = {0, -1};
  for (int index = 0; index < 2; index++) {
    size_t handle;
    Properties properties = {1, 0, 1, 1, NULL, {0}};
    echo.device = devices[index];
    int status = cuMemCreate((size_t)&handle, 10 * GIB + 1, (size_t)&properties, 0, 0, 0, 0, 0);
    CHECK(status == OUT_OF_MEMORY && !member.asked, "%d %d", status, member.asked);
  }
}

static void another_failure_is_none_of_memory(void) {
  joins();
  begin(1, GIB);
  echo.status = 700;
  CHECK(allocates(MIB) == 700 && !member.asked && echo.calls == 1, "%d", member.asked);
}

static void without_anybody_the_driver_is_asked_once(void) {
  begin(1, GIB);
  CHECK(allocates(MIB) == OUT_OF_MEMORY && echo.calls == 1, "%d", echo.calls);
}

// Those that take memory ask for it, the others do not.
static void each_function_that_takes_memory(void) {
  static const char *const of_device_1[] = {
      "cuMemCreate", "cuCtxCreate_v2", "cuCtxCreate_v3", "cuCtxCreate_v4", "cuDevicePrimaryCtxRetain",
      "cuGreenCtxCreate", "cuKernelGetAttribute", "cuKernelSetAttribute", "cuMemAllocAsync", "cuMemAllocAsync_ptsz",
      "cuMemAllocFromPoolAsync", "cuMemAllocFromPoolAsync_ptsz"};
  static const char *const give_back[] = {"Free", "Release", "Unmap", "Map", "Retain", "Trim", "Destroy", "Reset"};
  joins();
  for (size_t index = 0; index < sizeof known / sizeof *known; index++) {
    const char *symbol = known[index].symbol;
    int takes = 1, device = 0;
    for (int other = 0; other < 8; other++) takes &= !strstr(symbol, give_back[other]);
    takes |= !strcmp(symbol, "cuDevicePrimaryCtxRetain");
    for (size_t other = 0; other < sizeof of_device_1 / sizeof *of_device_1; other++) device |= !strcmp(symbol, of_device_1[other]);
    size_t place[8] = {0}, pitch = 4096;
    Properties properties = {1, 0, 1, 1, NULL, {0}};
    begin(1, MIB);
    // Each that asks for a device has it as another argument, or as its stream's.
    size_t second = !strcmp(symbol, "cuDevicePrimaryCtxRetain") ? 1 : strstr(symbol, "Pitch") ? (size_t)&pitch : 4096;
    size_t third = !strcmp(symbol, "cuMemCreate") ? (size_t)&properties : 1;
    // As many options as an argument says.
    size_t options_or_1 = !strstr(symbol, "Load");
    if (!options_or_1) third = 0;
    int status = known[index].function((size_t)place, second, third, options_or_1, options_or_1, 0, 0, 0);
    CHECK(member.asked == takes && status == (takes ? 0 : OUT_OF_MEMORY), "%s: asked %d times", symbol, member.asked);
    CHECK(!takes || member.device == device, "%s: of device %d", symbol, member.device);
  }
}

static uint64_t allocates_itself(int device, uint64_t bytes) {
  size_t address = 0;
  member.asked++;
  CHECK(cuMemAlloc_v2((size_t)&address, MIB, 0, 0, 0, 0, 0, 0) == OUT_OF_MEMORY, "it was given memory");
  // What it gives back is counted.
  echo.status = 0;
  echo.gives = 0;
  CHECK(!cuMemFree_v2(0x5000, 0, 0, 0, 0, 0, 0, 0), "it failed");
  echo.gives = 0x6000;
  return MIB;
}
static void who_gives_way_is_not_asked_again_meanwhile(void) {
  member_gives = allocates_itself;
  CHECK(member_joins(), "it cannot join");
  begin(1, 0);
  echo.status = 0;
  echo.gives = 0x5000;
  CHECK(!allocates(3 * MIB), "it failed");
  begin(1, 0);
  CHECK(!allocates(MIB) && member.asked == 1, "asked %d times", member.asked);
  HOLDS(NULL, 0, MIB, 1);
}

static uint64_t gives_the_rest(int device, uint64_t bytes) {
  member.bytes[0] = bytes;
  echo.status = 0;
  return bytes;
}
static void where_there_are_two_each_is_asked_for_what_is_left(void) {
  joins();
  CHECK(table()->join(gives_the_rest, has_nothing), "it cannot join");
  begin(8, 10 * MIB);
  CHECK(!allocates(2 * MIB) && member.asked == 1, "%d", member.asked);
  CHECK(member.bytes[0] == (2 - 1 + 32 - 10) * MIB, "%llu", (unsigned long long)member.bytes[0]);
}

static void too_many_are_told_so(void) {
  int joined = 0;
  while (joined < 100 && table()->join(gives, has_nothing)) joined++;
  CHECK(joined == 8, "%d", joined);
}

static void what_it_calls_itself_is_passed_by(void) {
  void *driver = dlopen("libcuda.so.1", RTLD_NOW);
  Function before = (Function)member_finds(driver, "cuMemAlloc_v2");
  joins();
  Function after = (Function)member_finds(driver, "cuMemAlloc_v2");
  CHECK(before && after && before != after, "%p %p", (void *)before, (void *)after);
  size_t address = 0;
  begin(1, 0);
  CHECK(after((size_t)&address, MIB, 0, 0, 0, 0, 0, 0) == OUT_OF_MEMORY && !member.asked, "%d", member.asked);
  echo.status = 0;
  CHECK(!after((size_t)&address, MIB, 0, 0, 0, 0, 0, 0), "it failed");
  HOLDS(NULL, 0, 0, 0);
}

// As the driver gives something back, another thread is given the same before the first has come to say so.
static struct { Function function; size_t arguments[4], gives; } meanwhile;
static void *is_given_the_same(void *unused) {
  size_t *a = meanwhile.arguments;
  echo.gives = meanwhile.gives;
  CHECK(!meanwhile.function(a[0], a[1], a[2], a[3], 0, 0, 0, 0), "it failed");
  echo.gives = 0;
  return NULL;
}
static void in_a_thread(void) {
  pthread_t thread;
  echo.meanwhile = NULL;
  pthread_create(&thread, NULL, is_given_the_same, NULL);
  pthread_join(thread, NULL);
}
static void as_it_goes(Function function, size_t first, size_t second, size_t gives) {
  meanwhile.function = function;
  size_t arguments[4] = {first, second, 0, 0};
  memcpy(meanwhile.arguments, arguments, sizeof arguments);
  meanwhile.gives = gives;
  echo.meanwhile = in_a_thread;
  echo.gives = 0;
}
static void what_another_thread_gets_at_once_is_its_own(void) {
  size_t place;
  Properties properties = {1, 0, 1, 0, NULL, {0}};
  echo.gives = 0x1000;
  CHECK(!allocates(MIB), "it failed");
  as_it_goes(cuMemAlloc_v2, (size_t)&place, 3 * MIB, 0x1000);
  CHECK(!cuMemFree_v2(0x1000, 0, 0, 0, 0, 0, 0, 0), "it failed");
  HOLDS(NULL, 0, 3 * MIB, 1);
  CHECK(!cuMemFree_v2(0x1000, 0, 0, 0, 0, 0, 0, 0), "it failed");
  HOLDS(NULL, 0, 0, 0);
  // A handle of physical memory that is mapped, so that it is there without it.
  echo.gives = 7;
  CHECK(!cuMemCreate((size_t)&place, MIB, (size_t)&properties, 0, 0, 0, 0, 0), "it failed");
  echo.gives = 0;
  CHECK(!cuMemMap(0x100000, MIB, 0, 7, 0, 0, 0, 0), "it failed");
  as_it_goes(cuMemCreate, (size_t)&place, 3 * MIB, 7);
  meanwhile.arguments[2] = (size_t)&properties;
  CHECK(!cuMemRelease(7, 0, 0, 0, 0, 0, 0, 0), "it failed");
  HOLDS(NULL, 0, 4 * MIB, 2);
  // The addresses are another's at once, as well.
  as_it_goes(cuMemMap, 0x100000, MIB, 0);
  meanwhile.arguments[3] = 7;
  CHECK(!cuMemUnmap(0x100000, MIB, 0, 0, 0, 0, 0, 0), "it failed");
  HOLDS(NULL, 0, 3 * MIB, 1);
  CHECK(!cuMemRelease(7, 0, 0, 0, 0, 0, 0, 0), "it failed");
  HOLDS(NULL, 0, 3 * MIB, 1);
  CHECK(!cuMemUnmap(0x100000, MIB, 0, 0, 0, 0, 0, 0), "it failed");
  HOLDS(NULL, 0, 0, 0);
}

static void what_another_thread_maps_again_at_once_is_its_own(void) {
  size_t place;
  Properties properties = {1, 0, 1, 0, NULL, {0}};
  echo.gives = 7;
  CHECK(!cuMemCreate((size_t)&place, MIB, (size_t)&properties, 0, 0, 0, 0, 0), "it failed");
  CHECK(!cuMemMap(0x100000, MIB, 0, 7, 0, 0, 0, 0), "it failed");
  // The same physical memory, at the same addresses.
  as_it_goes(cuMemMap, 0x100000, MIB, 0);
  meanwhile.arguments[3] = 7;
  CHECK(!cuMemUnmap(0x100000, MIB, 0, 0, 0, 0, 0, 0), "it failed");
  CHECK(!cuMemRelease(7, 0, 0, 0, 0, 0, 0, 0), "it failed");
  HOLDS(NULL, 0, MIB, 1);
  CHECK(!cuMemUnmap(0x100000, MIB, 0, 0, 0, 0, 0, 0), "it failed");
  HOLDS(NULL, 0, 0, 0);
}

// A program that is newer than the driver gets what that has, whose arguments are others.
static void an_older_driver_has_older_functions(void) {
  joins();
  Function create = NULL;
  echo.version = 12040;
  CHECK(!cuGetProcAddress("cuCtxCreate", &create, 12050, 0), "it failed");
  begin(1, MIB);
  size_t context, flags = 3, device = 1;
  CHECK(!create((size_t)&context, 0, 0, flags, device, 0, 0, 0), "it failed");
  CHECK(!strcmp(echo.symbol, "cuCtxCreate_v3"), "%s", echo.symbol);
  CHECK(member.asked == 1 && member.device == 1, "of device %d", member.device);
}

// Nor is what an older driver lacks asked for at each call: that would be the program's error, and wait for the linker.
static void what_the_driver_lacks_is_not_told(void) {
  begin(1, 0);
  echo.status = 0;
  size_t place;
  for (int turn = 0; turn < 2; turn++) {
    dlerror();
    CHECK(!cuMemAllocAsync((size_t)&place, MIB, 1, 0, 0, 0, 0, 0), "it failed");
    const char *error = dlerror();
    CHECK(!error, "turn %d: %s", turn, error);
  }
}

// The null stream of these functions is the thread's own, which can be captured, as that of the others cannot.
static void of_a_capture_of_the_thread_s_own_stream_nothing_is_counted(void) {
  enum { PER_THREAD = 2 };
  size_t place;
  Function found;
  begin(1, 0);
  echo.status = 0;
  echo.captured = 2;
  CHECK(!cuMemAllocAsync_ptsz((size_t)&place, MIB, 0, 0, 0, 0, 0, 0), "it failed");
  CHECK(!cuMemAllocFromPoolAsync_ptsz((size_t)&place, MIB, 1, 0, 0, 0, 0, 0), "it failed");
  CHECK(!cuGetProcAddress("cuMemAllocAsync", &found, 12000, PER_THREAD), "it failed");
  CHECK(!found((size_t)&place, MIB, 0, 0, 0, 0, 0, 0), "it failed");
  HOLDS(NULL, 0, 0, 0);
  CHECK(!cuMemAllocAsync((size_t)&place, MIB, 0, 0, 0, 0, 0, 0), "it failed");
  HOLDS(NULL, 0, MIB, 1);
}

// One that a program opens and closes stays for those who ask it.
static void *joins_and_ends(void *library) {
  int (*member_joins)(void) = (int (*)(void))dlsym(library, "member_joins");
  CHECK(member_joins && member_joins(), "it cannot join");
  return NULL;
}
static void who_has_joined_is_not_unloaded(void) {
  pthread_t thread;
  void *library = dlopen("libmember_too.so", RTLD_NOW | RTLD_LOCAL);
  CHECK(library, "%s", dlerror());
  pthread_create(&thread, NULL, joins_and_ends, library);
  pthread_join(thread, NULL);
  CHECK(!dlclose(library), "%s", dlerror());
  member_gives = gives;
  begin(1, MIB);
  CHECK(!allocates(MIB) && member.asked == 1, "it was not asked");
}

// The driver writes to what it has read of some options: the size of a log becomes what was written of it.
static struct { size_t values[2], seen[2]; int calls; } options;
static void writes_to_options(void) {
  options.seen[options.calls++ % 2] = options.values[1];
  options.values[1] = 0;
}
static void what_a_call_has_written_to_its_options_is_not_told_again(void) {
  joins();
  size_t module, *values = options.values;
  for (int which = 0; which < 3; which++) {
    begin(1, MIB);
    memset(&options, 0, sizeof options);
    values[1] = 4096;
    echo.meanwhile = writes_to_options;
    int status = which == 0 ? cuModuleLoadDataEx((size_t)&module, 0, 2, 0, (size_t)values, 0, 0, 0)
        : which == 1 ? cuLibraryLoadData((size_t)&module, 0, 0, (size_t)values, 2, 0, 0, 0)
                     : cuLibraryLoadFromFile((size_t)&module, 0, 0, (size_t)values, 2, 0, 0, 0);
    echo.meanwhile = NULL;
    CHECK(!status && options.calls == 2, "status %d after %d calls", status, options.calls);
    CHECK(options.seen[1] == 4096, "%d: a log of %d bytes", which, (int)options.seen[1]);
    CHECK(!values[1], "what the driver has written is gone");
  }
}

// Options that the driver only reads may be a program's constants.
static void options_that_nobody_writes_to_need_not_be_writable(void) {
  static const size_t values[2] = {64, 4096};
  joins();
  size_t module;
  begin(1, MIB);
  CHECK(!cuModuleLoadDataEx((size_t)&module, 0, 2, 0, (size_t)values, 0, 0, 0), "it failed");
  CHECK(echo.calls == 2, "%d calls", echo.calls);
}

// The stack ends above the arguments: what a thread begins with may have nothing there.
static void beyond_its_arguments_the_stack_is_not_looked_at(void) {
#ifdef __x86_64__
  enum { SIZE = 1 << 20, NO_ACCESS = 4096 };
  char *stack = (char *)mmap(NULL, SIZE + NO_ACCESS, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(stack != MAP_FAILED && !mprotect(stack + SIZE, NO_ACCESS, PROT_NONE), "there is no stack");
  Function functions[] = {cuMemFree_v2, cuModuleLoadDataEx, cuLaunchKernelEx};
  for (int index = 0; index < 3; index++) {
    size_t status = 0;
    echo.calls = 0;
    __asm__ volatile("mov %%rsp, %%rbx\n\tmov %2, %%rsp\n\tcall *%1\n\tmov %%rbx, %%rsp"
                     : "+a"(status)
                     : "r"(functions[index]), "r"(stack + SIZE), "D"(0), "S"(0), "d"(0)
                     : "rbx", "rcx", "r8", "r9", "r10", "r11", "cc", "memory");
    CHECK(echo.calls == 1, "%d calls", echo.calls);
  }
#endif
}

static const Case cases[] = {
    CASE(what_is_missing_is_asked_for_and_a_little_more), CASE(as_long_as_it_does_not_help_more_is_asked_for),
    CASE(where_nothing_is_given_the_driver_s_answer_comes_back),
    CASE(what_was_given_for_another_thread_s_call_is_enough_for_both),
    CASE(more_than_the_device_has_is_asked_of_nobody), CASE(another_failure_is_none_of_memory),
    CASE(without_anybody_the_driver_is_asked_once),
    CASE(each_function_that_takes_memory), CASE(who_gives_way_is_not_asked_again_meanwhile),
    CASE(where_there_are_two_each_is_asked_for_what_is_left), CASE(too_many_are_told_so),
    CASE(what_it_calls_itself_is_passed_by), CASE(what_another_thread_gets_at_once_is_its_own),
    CASE(what_another_thread_maps_again_at_once_is_its_own), CASE(who_has_joined_is_not_unloaded),
    CASE(an_older_driver_has_older_functions), CASE(what_the_driver_lacks_is_not_told),
    CASE(of_a_capture_of_the_thread_s_own_stream_nothing_is_counted),
    CASE(what_a_call_has_written_to_its_options_is_not_told_again),
    CASE(options_that_nobody_writes_to_need_not_be_writable), CASE(beyond_its_arguments_the_stack_is_not_looked_at)};

int main(int count, char **arguments) { return run_case(cases, sizeof cases / sizeof *cases, count, arguments); }
