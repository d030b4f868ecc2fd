// gpupool's memory resources, as CCCL's programs use them; with WITH_RMM also as RMM's do. Over simulated devices; returns
// 0 where all is right.

#include <gpupool_mr.hpp>

#ifdef WITH_RMM
#include <rmm/device_buffer.hpp>
#include <rmm/mr/per_device_resource.hpp>

#include <gpupool_rmm.hpp>
#endif

#include <memory>

#include "memory.hpp"

namespace {

const cuda::stream_ref STREAM{cudaStream_t{}};

// Through CCCL's own wrappers, which copy resources.
template <class OutOfMemory, class Resource> void serves(Resource resource) {
  auto before = live();
  cuda::mr::any_resource<cuda::mr::device_accessible> any{resource};
  cuda::mr::resource_ref<cuda::mr::device_accessible> ref{any};
  auto *pointer = ref.allocate(STREAM, MIB, 256);
  EXPECT(gpupool::api().owns(pointer) && live() == before + std::int64_t(MIB));
  ref.deallocate(STREAM, pointer, MIB, 256);
  pointer = any.allocate_sync(1000, 512);
  EXPECT(pointer && reinterpret_cast<std::uintptr_t>(pointer) % 512 == 0);
  resource.deallocate_sync(pointer, 1000, 512);
  EXPECT(resource.allocate(STREAM, 0) == nullptr);
  resource.deallocate(STREAM, nullptr, 0);
  EXPECT(live() == before);
  throws<OutOfMemory>("tried to allocate", [&] { (void)ref.allocate(STREAM, std::size_t{1} << 50, 256); });
  for (std::size_t wrong : {1024, 3})
    throws(GPUPOOL_ERROR_INVALID_VALUE, "power of two", [&] { (void)resource.allocate(STREAM, 1, wrong); });
  resource.deallocate(STREAM, resource.allocate(STREAM, 1, 0), 1);
}

template <class Resource> void are_equal_where_their_memory_is() {
  auto pool = std::make_shared<const gpupool::pool>(0);
  EXPECT(Resource(0) == Resource(0) && Resource(0) != Resource(1) && Resource(pool) == Resource(pool));
  EXPECT(Resource(pool) != Resource(0) && Resource(pool).device() == 0);
}

void a_resource_follows_scopes_or_keeps_a_pool() {
  auto pool = std::make_shared<gpupool::pool>(0);
  auto id = pool->id();
  gpupool::memory_resource any(0), own{std::shared_ptr<const gpupool::pool>(pool)};
  gpupool::scope scope(*pool);
  auto *pointer = any.allocate(STREAM, MIB);
  EXPECT(block_at(pointer).pool.second == id.second);
  any.deallocate(STREAM, pointer, MIB);
  gpupool::pool inner;
  gpupool::scope another(inner);
  pool.reset();
  pointer = own.allocate(STREAM, MIB);
  EXPECT(block_at(pointer).pool.second == id.second);
  own.deallocate(STREAM, pointer, MIB);
}

void pinned_memory_is_the_hosts() {
  gpupool::pinned_memory_resource resource(0);
  cuda::mr::any_resource<cuda::mr::device_accessible, cuda::mr::host_accessible> any{resource};
  auto *pointer = any.allocate(STREAM, MIB, 256);
  std::memset(pointer, 7, MIB);
  EXPECT(block_at(pointer).device < 0);
  any.deallocate(STREAM, pointer, MIB, 256);
  EXPECT(resource == gpupool::pinned_memory_resource(0) && resource != gpupool::pinned_memory_resource(1));
}

#ifdef WITH_RMM
void rmms_buffers_stand_on_it() {
  auto before = live();
  gpupool::rmm_resource resource(0);
  // By reference in RMM before 26.06, as a copy since.
  rmm::device_async_resource_ref ref{resource};
  {
    rmm::device_buffer buffer(MIB, rmm::device_buffer{}.stream(), ref);
    EXPECT(buffer.size() == MIB && gpupool::api().owns(buffer.data()) && live() > before);
  }
  EXPECT(live() == before);
}
#endif

} // namespace

int main() {
  serves<gpupool::out_of_memory>(gpupool::memory_resource(0));
  serves<std::bad_alloc>(gpupool::memory_resource(std::make_shared<const gpupool::pool>(0)));
  are_equal_where_their_memory_is<gpupool::memory_resource>();
  a_resource_follows_scopes_or_keeps_a_pool();
  pinned_memory_is_the_hosts();
#ifdef WITH_RMM
  serves<rmm::out_of_memory>(gpupool::rmm_resource(0));
  are_equal_where_their_memory_is<gpupool::rmm_resource>();
  rmms_buffers_stand_on_it();
#endif
}
