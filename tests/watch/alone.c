// Where there is no driver: one case for each name.

#include "watched.h"

static void no_function_is_there(void) {
  const char *const symbols[] = {"cuMemAlloc_v2", "cuMemFree_v2", "cuGetProcAddress_v2"};
  CHECK(!dlopen("libcuda.so.1", RTLD_NOW) && dlerror(), "there is a driver");
  for (int index = 0; index < 3; index++) {
    void *const handles[] = {RTLD_DEFAULT, RTLD_NEXT, dlopen(NULL, RTLD_NOW), dlopen("libc.so.6", RTLD_NOW)};
    for (int handle = 0; handle < 4; handle++) {
      dlerror();
      void *found = dlsym(handles[handle], symbols[index]);
      const char *error = dlerror();
      CHECK(!found && error && strstr(error, symbols[index]), "%d: %p, %s", handle, found, error ? error : "no error");
    }
    // Asked by a library that was preloaded after this one.
    void *(*asks_next)(const char *) = (void *(*)(const char *))dlsym(RTLD_DEFAULT, "asks_next");
    void *found = asks_next(symbols[index]);
    const char *error = dlerror();
    CHECK(!found && error && strstr(error, symbols[index]), "%p, %s", found, error ? error : "no error");
    CHECK(!dlvsym(RTLD_DEFAULT, symbols[index], "libcuda.so.1") && dlerror(), "%s", symbols[index]);
  }
  HOLDS(NULL, 0, 0, 0);
  CHECK(table()->process_bytes(0) == 0, "it has memory of no device");
}

// A program that is linked with the driver, which is older than the function or is gone.
extern int cuMemCreate(void *, size_t, void *, Address) __attribute__((weak));
static void a_function_that_nobody_has_says_so(void) {
  CHECK(cuMemCreate, "the linker did not find this library's");
  CHECK(cuMemCreate(NULL, 4096, NULL, 0) == 500, "not CUDA_ERROR_NOT_FOUND");
}

// Whatever else is asked for is as without the library.
static void everything_else_is_the_linker_s(void) {
  void *c = dlopen("libc.so.6", RTLD_NOW);
  CHECK(dlsym(c, "malloc") == (void *)malloc && dlsym(RTLD_DEFAULT, "malloc") == (void *)malloc, "another malloc");
  CHECK(dlsym(RTLD_NEXT, "malloc") == (void *)malloc, "the next is another");
  CHECK(!dlsym(c, "no_such_function") && strstr(dlerror(), "no_such_function"), "no error");
  CHECK(!dlvsym(c, "malloc", "NO_SUCH_1.0") && strstr(dlerror(), "NO_SUCH_1.0"), "no error");
  void *const handles[] = {RTLD_DEFAULT, c, RTLD_NEXT};
  void *own = dlsym(c, "dlsym");
  for (int index = 0; index < 3; index++) {
    CHECK(!dlsym(c, "no_such_function"), "it is there");
    void *found = dlsym(handles[index], "dlsym");
    CHECK(found && found == own, "%d: another dlsym", index);
    CHECK(!dlerror(), "%d: it was found, and an error of before is left", index);
  }
}

static const Case cases[] = {CASE(no_function_is_there), CASE(a_function_that_nobody_has_says_so),
                             CASE(everything_else_is_the_linker_s)};

int main(int count, char **arguments) { return run_case(cases, sizeof cases / sizeof *cases, count, arguments); }
