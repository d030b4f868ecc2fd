// gpupool_rmm.hpp: memory resources for RMM over gpupool, which throw RMM's exceptions. Header only, over gpupool_mr.hpp.
//
//   rmm::mr::set_current_device_resource(gpupool::rmm_resource(0));   // RMM 26.06 or later
//   rmm::device_buffer buffer(1 << 20, stream, gpupool::rmm_resource(0));
//
// If there is not enough memory, rmm::out_of_memory is thrown, with gpupool's message. Link librmm.so too.
#ifndef GPUPOOL_RMM_HPP
#define GPUPOOL_RMM_HPP

#include <rmm/version_config.hpp>

#if RMM_VERSION_MAJOR >= 26 && __has_include(<rmm/error.hpp>)
#include <rmm/error.hpp>
#else
#include <rmm/detail/error.hpp>
#endif

#include "gpupool_mr.hpp"

namespace gpupool {

struct rmm_errors {
  [[noreturn]] static void out_of_memory(const char *why) { throw rmm::out_of_memory(why); }
};

using rmm_resource = basic_memory_resource<rmm_errors>;
using rmm_pinned_resource = basic_pinned_memory_resource<rmm_errors>;

static_assert(cuda::mr::resource_with<rmm_resource, cuda::mr::device_accessible>);

} // namespace gpupool

#endif
