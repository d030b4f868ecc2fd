// Whose memory it is: of the file that called the driver, on that of echo.c. One case for each name.

#include "watched.h"
#include "echo.h"
#define STATIC
#include "runtime.c"

typedef struct { void *library; int (*allocate)(void **, size_t), (*release)(void *); } User;

enum { MIB = 1 << 20 };

static Echo *driver(void) {
  void *opened = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  Echo *echo = opened ? (Echo *)dlsym(opened, "echo") : NULL;
  CHECK(echo, "%s", dlerror());
  return echo;
}

static User opened(const char *name) {
  void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  CHECK(library, "%s", dlerror());
  return (User){library, (int (*)(void **, size_t))dlsym(library, "user_allocate"),
                (int (*)(void *))dlsym(library, "user_free")};
}

static void *allocated(int (*allocate)(void **, size_t), size_t bytes) {
  static size_t last = 0x1000;
  void *address = NULL;
  driver()->gives = last += 0x1000;
  CHECK(!allocate(&address, bytes) && address == (void *)last, "it failed");
  driver()->gives = 0;
  return address;
}

// Each is a library that the program opens for itself alone.
static void is_of(const char *name) {
  User user = opened(name);
  void *address = allocated(user.allocate, 3 * MIB);
  HOLDS(name, 0, 3 * MIB, 1);
  HOLDS(NULL, 0, 3 * MIB, 1);
  CHECK(!user.release(address), "it failed");
  HOLDS(NULL, 0, 0, 0);
}
static void of_a_library_that_is_linked_with_the_driver(void) { is_of("libuser_driver.so"); }
static void of_a_library_that_calls_the_runtime(void) { is_of("libuser_runtime.so"); }
// As older wheels of PyTorch have it, by a name with a digest.
static void of_a_library_that_calls_a_renamed_runtime(void) { is_of("libuser_renamed.so"); }

// A driver that only one library sees is found without an error.
static void of_a_program_that_finds_what_is_there(void) {
  driver();
  void *handles[] = {RTLD_DEFAULT, RTLD_NEXT, dlopen(NULL, RTLD_NOW)};
  for (int index = 0; index < 3; index++) {
    CHECK(!dlsym(handles[index], "cuMemNothing") && dlerror(), "it is there");
    int (*allocate)(void **, size_t) = (int (*)(void **, size_t))dlsym(handles[index], "cuMemAlloc_v2");
    CHECK(allocate && !dlerror(), "%d: an error is left", index);
    allocated(allocate, MIB);
  }
  HOLDS("who", 0, 3 * MIB, 3);
}

static void of_a_program_that_has_the_runtime_in_it(void) {
  void *address = allocated(cudaMalloc, MIB);
  HOLDS("who", 0, MIB, 1);
  User user = opened("libuser_driver.so");
  void *other = allocated(user.allocate, 2 * MIB);
  HOLDS("who", 0, MIB, 1);
  HOLDS("libuser_driver.so", 0, 2 * MIB, 1);
  // Whoever frees it.
  CHECK(!user.release(address) && !cudaFree(other), "it failed");
  HOLDS("who", 0, 0, 0);
  HOLDS("libuser_driver.so", 0, 0, 0);
}

static void of_a_library_that_has_been_closed(void) {
  User user = opened("libuser_driver.so");
  void *address = allocated(user.allocate, MIB);
  CHECK(!dlclose(user.library) && !dlopen("libuser_driver.so", RTLD_NOW | RTLD_NOLOAD), "it is there still");
  HOLDS("libuser_driver.so", 0, MIB, 1);
  // Another one at its place has its own.
  User other = opened("libuser_runtime.so");
  void *others = allocated(other.allocate, 2 * MIB);
  HOLDS("libuser_driver.so", 0, MIB, 1);
  HOLDS("libuser_runtime.so", 0, 2 * MIB, 1);
  // And the same is the same again.
  User again = opened("libuser_driver.so");
  void *third = allocated(again.allocate, 4 * MIB);
  HOLDS("libuser_driver.so", 0, 5 * MIB, 2);
  CHECK(!again.release(address) && !again.release(others) && !again.release(third), "it failed");
  HOLDS(NULL, 0, 0, 0);
}

// It has a driver of its own there, which nobody watches.
static void of_a_library_in_another_namespace_nothing_is_known(void) {
  void *library = dlmopen(LM_ID_NEWLM, "libuser_driver.so", RTLD_NOW);
  CHECK(library, "%s", dlerror());
  int (*allocate)(void **, size_t) = (int (*)(void **, size_t))dlsym(library, "user_allocate");
  void *address;
  CHECK(!allocate(&address, MIB), "it failed");
  HOLDS(NULL, 0, 0, 0);
  is_of("libuser_driver.so");
}

static const Case cases[] = {
    CASE(of_a_library_that_is_linked_with_the_driver), CASE(of_a_library_that_calls_the_runtime),
    CASE(of_a_library_that_calls_a_renamed_runtime), CASE(of_a_program_that_has_the_runtime_in_it),
    CASE(of_a_program_that_finds_what_is_there),
    CASE(of_a_library_that_has_been_closed), CASE(of_a_library_in_another_namespace_nothing_is_known)};

int main(int count, char **arguments) { return run_case(cases, sizeof cases / sizeof *cases, count, arguments); }
