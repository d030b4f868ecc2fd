// A program in C++ that takes memory before main and gives it back after, at the ends of threads, and where exceptions
// pass.

#include "watched.h"
#include "driver_calls.h"

#include <new>
#include <stdexcept>
#include <thread>
#include <vector>

namespace {

class Buffer {
 public:
  explicit Buffer(size_t bytes) {
    use_device(0);
    if (cuMemAlloc_v2(&address_, bytes)) throw std::bad_alloc();
  }
  ~Buffer() { DO(cuMemFree_v2(address_)); }
  Buffer(const Buffer &) = delete;
  Buffer &operator=(const Buffer &) = delete;

 private:
  Address address_ = 0;
};

// Made before main begins, and destroyed once it has ended.
struct Whole {
  Buffer first{3 * MIB};
  ~Whole() { IS_RIGHT(0, 1); }
} whole;

void takes_and_throws(int depth) {
  Buffer buffer(MIB);
  if (!depth) throw std::runtime_error("from far below");
  takes_and_throws(depth - 1);
}

}  // namespace

int main() {
  IS_RIGHT(0, 1);
  try {
    takes_and_throws(5);
    CHECK(false, "nothing was thrown");
  } catch (const std::runtime_error &) {
    IS_RIGHT(0, 1);
  }
  try {
    Buffer buffer(size_t{1} << 50);
    CHECK(false, "there is not so much");
  } catch (const std::bad_alloc &) {
    IS_RIGHT(0, 1);
  }
  std::vector<std::thread> threads;
  for (int index = 0; index < 4; index++)
    threads.emplace_back([] {
      // Destroyed as the thread ends.
      thread_local Buffer own(MIB);
      for (int turn = 0; turn < 100; turn++) Buffer more(MIB);
    });
  for (std::thread &thread : threads) thread.join();
  IS_RIGHT(0, 1);
}
