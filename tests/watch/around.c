// A program whose code is below all libraries, and whose data is above them.

#include "watched.h"
#include "echo.h"

#include <unistd.h>

__attribute__((section(".far"))) int far_away = 7;
extern int user_allocate(void **, size_t), cuMemAlloc_v2(Address *, size_t);

static uint64_t gives_nothing(int device, uint64_t bytes) { return 0; }

int main(void) {
  Address address;
  void *place;
  // What finds itself as the next goes on for ever.
  alarm(20);
  CHECK(dlsym(RTLD_NEXT, "malloc") == (void *)malloc && far_away == 7, "the next is another");
  echo.gives = 0x1000;
  CHECK(!cuMemAlloc_v2(&address, 4096), "it failed");
  echo.gives = 0x2000;
  CHECK(!user_allocate(&place, 8192), "it failed");
  HOLDS("around", 0, 4096, 1);
  HOLDS("libuser_driver.so", 0, 8192, 1);
  // If it gives way, its own calls are passed on as they are, and no other's.
  CHECK(table()->join(gives_nothing, has_nothing), "it cannot join");
  int (*finds)(void **, size_t) = (int (*)(void **, size_t))dlsym(dlopen("libfinds.so", RTLD_NOW), "user_allocate");
  echo.gives = 0x4000;
  CHECK(finds && !finds(&place, 16384), "it failed");
  HOLDS("libfinds.so", 0, 16384, 1);
  return 0;
}
