// Which stream a null one is: the legacy default stream, or, in code that is compiled for per-thread default streams, the
// thread's own. Compiled both ways and linked together, as a program may be; with WITH_RESOURCES CCCL's too. Returns 0 where
// all is right.

#ifdef WITH_RESOURCES
#include <gpupool_mr.hpp>
#endif
#include <gpupool_handles.hpp>

#include "expect.hpp"

void null_streams_are_per_thread();

namespace {

constexpr std::size_t BYTES = 1 << 20;

// What the last function of the table was given that takes a stream.
const gpupool_api *real;
void *given;

int allocate(std::uint64_t bytes, int device, void *stream, void **pointer) {
  given = stream;
  return real->allocate(bytes, device, stream, pointer);
}
int pool_allocate(gpupool_pool *pool, std::uint64_t ticket, std::uint64_t bytes, void *stream, void **pointer) {
  given = stream;
  return real->pool_allocate(pool, ticket, bytes, stream, pointer);
}
int record_stream(void *pointer, int device, void *stream) {
  given = stream;
  return real->record_stream(pointer, device, stream);
}
int deallocate_on(void *pointer, int device, void *stream) {
  given = stream;
  return real->deallocate_on(pointer, device, stream);
}
int synchronize(int device, void *stream) {
  given = stream;
  return real->synchronize(device, stream);
}
int handle(int library, int device, void *stream, void **handle) {
  given = stream;
  return real->handle(library, device, stream, handle);
}
int lease(int library, int device, void *stream, std::uint64_t timeout_ms, gpupool_lease *lease) {
  given = stream;
  return real->lease(library, device, stream, timeout_ms, lease);
}

bool is_given(void *expected) {
  static int nothing;
  return std::exchange(given, &nothing) == expected;
}

// A class that is a stream to others, as RMM's cuda_stream_view is.
struct view {
  operator struct CUstream_st *() const { return nullptr; }
};

void null_streams_are(void *expected) {
  gpupool_api table = *gpupool_get_api(GPUPOOL_API_VERSION);
  real = gpupool_get_api(GPUPOOL_API_VERSION);
  table.allocate = allocate;
  table.pool_allocate = pool_allocate;
  table.record_stream = record_stream;
  table.deallocate_on = deallocate_on;
  table.synchronize = synchronize;
  table.handle = handle;
  table.lease = lease;
  gpupool::set_api(&table);
  {
    gpupool::device_buffer unnamed(BYTES);
    EXPECT(is_given(expected) && unnamed.stream() == expected);
    gpupool::device_buffer null(BYTES, nullptr), zero(BYTES, 0, 0), converted(BYTES, view{});
    EXPECT(null.stream() == expected && zero.stream() == expected && converted.stream() == expected);
    gpupool::pool pool;
    gpupool::device_buffer of_pool(pool, BYTES);
    EXPECT(is_given(expected) && of_pool.stream() == expected);
    gpupool::deallocate(pool.allocate(BYTES), nullptr);
    EXPECT(is_given(expected));
    unnamed.record_stream(nullptr);
    EXPECT(is_given(expected));
    unnamed.free(nullptr);
    EXPECT(is_given(expected));
    gpupool::synchronize();
    EXPECT(is_given(expected));
    using simulated = gpupool::libraries::simulated;
    EXPECT(gpupool::handle<simulated>() && is_given(expected));
    EXPECT(gpupool::handle<simulated>(nullptr) && is_given(expected));
    EXPECT(gpupool::lease<simulated>() && is_given(expected));
    EXPECT(gpupool::lease<simulated>(nullptr) && is_given(expected));
    // Who names a default stream gets that one.
    for (std::uintptr_t number : {1, 2}) {
      auto *named = reinterpret_cast<void *>(number);
      EXPECT(gpupool::device_buffer(BYTES, named).stream() == named && is_given(named));
      gpupool::synchronize(named);
      EXPECT(is_given(named));
    }
  }
#ifdef WITH_RESOURCES
  {
    cuda::stream_ref stream{cudaStream_t{}};
    gpupool::memory_resource resource(0);
    auto *pointer = resource.allocate(stream, BYTES);
    EXPECT(is_given(expected));
    resource.deallocate(stream, pointer, BYTES);
    EXPECT(is_given(expected));
    gpupool::pinned_memory_resource pinned(0);
    pointer = pinned.allocate(stream, BYTES);
    EXPECT(is_given(expected));
    pinned.deallocate(stream, pointer, BYTES);
    EXPECT(is_given(expected));
  }
#endif
  gpupool::set_api(real);
}

} // namespace

#ifdef AS_PER_THREAD
void null_streams_are_per_thread() { null_streams_are(reinterpret_cast<void *>(std::uintptr_t{2})); }
#else
int main() {
  null_streams_are(nullptr);
  null_streams_are_per_thread();
  null_streams_are(nullptr);
}
#endif
