// What gpupool_onnxruntime.hpp's allocator does when it is called as ONNX Runtime calls one, over simulated devices. As a
// program it prints nothing and returns 0 where all is right; as a library it is called by Python, which says when streams'
// work is done. Of OrtApi there are the few functions that the allocator calls, with ONNX Runtime's header or its double.

#include <gpupool_onnxruntime.hpp>

#include <map>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "memory.hpp"

namespace {

// What ONNX Runtime's opaque types point to here.
struct memory_info {
  std::string name;
  int device;
};
int infos = 0;
using pairs = std::map<std::string, std::string>;

template <class Opaque> auto &made(Opaque *opaque) {
  if constexpr (std::is_same_v<std::remove_const_t<Opaque>, OrtMemoryInfo>) {
    return *reinterpret_cast<const memory_info *>(opaque);
  } else if constexpr (std::is_same_v<Opaque, OrtKeyValuePairs>) {
    return *reinterpret_cast<pairs *>(opaque);
  } else {
    return *reinterpret_cast<const std::string *>(opaque);
  }
}

OrtStatus *status(const char *text) { return reinterpret_cast<OrtStatus *>(new std::string(text)); }

const OrtApi *ort() {
  static OrtApi api = [] {
    OrtApi api{};
    api.CreateStatus = [](OrtErrorCode, const char *text) noexcept { return status(text); };
    api.GetErrorMessage = [](const OrtStatus *status) noexcept { return made(status).c_str(); };
    api.ReleaseStatus = [](OrtStatus *status) { delete &made(status); };
    api.CreateMemoryInfo = [](const char *name, OrtAllocatorType type, int device, OrtMemType of,
                              OrtMemoryInfo **info) noexcept -> OrtStatus * {
      // ONNX Runtime registers no allocator of another type.
      EXPECT(type == OrtDeviceAllocator && of == OrtMemTypeDefault);
      if (std::strcmp(name, "Cuda") && std::strcmp(name, "Cpu")) return status("Specified device is not supported.");
      *info = reinterpret_cast<OrtMemoryInfo *>(new memory_info{name, device});
      ++infos;
      return nullptr;
    };
    api.ReleaseMemoryInfo = [](OrtMemoryInfo *info) {
      delete &made(info);
      --infos;
    };
    api.CreateKeyValuePairs = [](OrtKeyValuePairs **out) { *out = reinterpret_cast<OrtKeyValuePairs *>(new pairs); };
    api.AddKeyValuePair = [](OrtKeyValuePairs *out, const char *key, const char *value) { made(out)[key] = value; };
    api.SyncStream_GetHandle = [](OrtSyncStream *stream) noexcept { return *reinterpret_cast<void **>(stream); };
    return api;
  }();
  return &api;
}

// What the last function that threw threw, as a status of ONNX Runtime would say.
thread_local std::string thrown;

template <class Function> void *or_null(Function function) {
  try {
    return function();
  } catch (const std::exception &failure) {
    thrown = failure.what();
    return nullptr;
  }
}

} // namespace

extern "C" {

gpupool::onnxruntime_allocator *make_allocator(std::uint64_t first, std::uint64_t second) {
  return new gpupool::onnxruntime_allocator(std::make_shared<gpupool::pool>(0, gpupool_pool_id{first, second}), "Cuda",
                                            ort());
}
void delete_allocator(gpupool::onnxruntime_allocator *allocator) { delete allocator; }

void *allocate(OrtAllocator *allocator, std::size_t size) {
  return or_null([&] { return allocator->Alloc(allocator, size); });
}
void *reserve(OrtAllocator *allocator, std::size_t size) {
  return or_null([&] { return allocator->Reserve(allocator, size); });
}
void *allocate_on(OrtAllocator *allocator, std::size_t size, void *stream) {
  return or_null([&] { return allocator->AllocOnStream(allocator, size, reinterpret_cast<OrtSyncStream *>(&stream)); });
}
void *allocate_on_none(OrtAllocator *allocator, std::size_t size) {
  return or_null([&] { return allocator->AllocOnStream(allocator, size, nullptr); });
}
void deallocate(OrtAllocator *allocator, void *memory) { allocator->Free(allocator, memory); }
bool thrown_has(const char *text) { return thrown.find(text) != std::string::npos; }
}

namespace {


std::shared_ptr<gpupool::pool> new_pool(int device = 0) { return std::make_shared<gpupool::pool>(device); }

pairs stats_of(const OrtAllocator &allocator) {
  OrtKeyValuePairs *out = nullptr;
  EXPECT(!allocator.GetStats(&allocator, &out));
  pairs found = made(out);
  delete &made(out);
  return found;
}

void it_says_what_it_is() {
  {
    gpupool::onnxruntime_allocator allocator(new_pool(1), "Cuda", ort());
    auto *info = allocator.Info(&allocator);
    EXPECT(info == allocator.memory_info() && made(info).name == "Cuda" && made(info).device == 1 && infos == 1);
    EXPECT(allocator.version == ORT_API_VERSION && allocator.last_error().empty());
    void *memory = allocate(&allocator, MIB);
    EXPECT(block_at(memory).device == 1);
    deallocate(&allocator, memory);
  }
  EXPECT(infos == 0);
}

void memory_has_its_size_however_it_is_asked_for() {
  gpupool::onnxruntime_allocator allocator(new_pool(), "Cuda", ort());
  for (std::size_t size : {std::size_t{1}, std::size_t{1000}, 3 * MIB}) {
    for (void *memory : {allocate(&allocator, size), reserve(&allocator, size), allocate_on_none(&allocator, size),
                         allocate_on(&allocator, size, nullptr)}) {
      EXPECT(memory && reinterpret_cast<std::uintptr_t>(memory) % 256 == 0 && live() > 0);
      std::memset(memory, 7, size);
      deallocate(&allocator, memory);
    }
    EXPECT(live() == 0 && allocator.last_error().empty());
  }
}

void without_memory_an_exception_says_why() {
  gpupool::onnxruntime_allocator allocator(new_pool(), "Cuda", ort());
  EXPECT(!allocate(&allocator, 0) && !reserve(&allocator, 0) && !allocate_on(&allocator, 0, nullptr) && thrown.empty());
  constexpr std::size_t TOO_MUCH = std::size_t{1} << 50;
  for (auto *function : {allocate, reserve, allocate_on_none}) {
    thrown.clear();
    EXPECT(!function(&allocator, TOO_MUCH) && thrown_has("tried to allocate"));
  }
  // Which ONNX Runtime's code may look for.
  throws<std::bad_alloc>("", [&] { allocator.Alloc(&allocator, TOO_MUCH); });
  thrown.clear();
  EXPECT(!allocate_on(&allocator, TOO_MUCH, nullptr) && thrown_has("tried to allocate") && live() == 0);
}

void a_free_that_fails_is_remembered() {
  gpupool::onnxruntime_allocator allocator(new_pool(), "Cuda", ort());
  deallocate(&allocator, nullptr);
  EXPECT(allocator.last_error().empty());
  static int others;
  deallocate(&allocator, &others);
  EXPECT(allocator.last_error().find("not memory that gpupool handed out") != std::string::npos);
}

void it_is_refused_where_it_cannot_work() {
  for (const OrtApi *api : {ort(), static_cast<const OrtApi *>(nullptr)})
    throws<gpupool::error>(api ? "not supported" : "is older than the header",
                           [&] { gpupool::onnxruntime_allocator(new_pool(), "Abacus", api); });
  EXPECT(infos == 0);
}

void its_statistics_are_the_pools() {
  gpupool::onnxruntime_allocator allocator(new_pool(), "Cuda", ort());
  void *memory[] = {allocate(&allocator, 3 * MIB), reserve(&allocator, 5 * MIB), allocate_on(&allocator, MIB, nullptr)};
  auto stats = stats_of(allocator);
  EXPECT(stats["InUse"] == std::to_string(9 * MIB) && std::stoull(stats["TotalAllocated"]) >= 9 * MIB);
  EXPECT(stats["NumAllocs"] == "2" && stats["NumReserves"] == "1" && stats["MaxAllocSize"] == std::to_string(5 * MIB));
  for (void *each : memory) deallocate(&allocator, each);
  EXPECT(stats_of(allocator)["InUse"] == "0");
#if ORT_API_VERSION >= 25
  EXPECT(!allocator.Shrink(&allocator) && stats_of(allocator)["TotalAllocated"] == "0");
#endif
}

void threads_share_it() {
  gpupool::onnxruntime_allocator allocator(new_pool(), "Cuda", ort());
  std::vector<std::thread> threads;
  for (unsigned char number = 1; number <= 4; ++number)
    threads.emplace_back([&, number] {
      for (std::size_t round = 0; round < 200; ++round) {
        std::size_t size = 100 + 7919 * round;
        auto *memory = static_cast<unsigned char *>(round % 2 ? allocate(&allocator, size)
                                                              : allocate_on(&allocator, size, nullptr));
        EXPECT(memory);
        std::memset(memory, number, size);
        EXPECT(memory[0] == number && memory[size - 1] == number);
        deallocate(&allocator, memory);
      }
    });
  for (auto &thread : threads) thread.join();
  EXPECT(live() == 0 && allocator.last_error().empty());
}

} // namespace

int main() {
  it_says_what_it_is();
  memory_has_its_size_however_it_is_asked_for();
  without_memory_an_exception_says_why();
  a_free_that_fails_is_remembered();
  it_is_refused_where_it_cannot_work();
  its_statistics_are_the_pools();
  threads_share_it();
}
