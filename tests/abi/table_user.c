// A program of a user's that takes memory by the table of gpupool.h. It is compiled as C and as C++.

#include <gpupool.h>
#include <string.h>

#ifdef __cplusplus
extern "C"
#endif
// Returns null, or what is wrong.
const char *use(const gpupool_api *api, void *stream) {
  if (api->version != GPUPOOL_API_VERSION) return "another version";
  if (api->size != sizeof *api) return "another size";
  void *pointer = NULL;
  if (api->allocate(1 << 20, 0, stream, &pointer) != GPUPOOL_SUCCESS) return api->last_error();
  if (!api->owns(pointer) || api->owns(&pointer)) return "memory is not told apart";
  gpupool_block block;
  memset(&block, 0, sizeof block);
  block.size = sizeof block;
  if (api->find_block(pointer, &block) != GPUPOOL_SUCCESS) return api->last_error();
  if (block.address != pointer || block.requested != 1 << 20 || block.stream != stream || !block.is_live)
    return "the block is another";
  memset(pointer, 7, 1 << 20);
  if (api->deallocate(pointer) != GPUPOOL_SUCCESS) return api->last_error();
  if (api->deallocate(&block) != GPUPOOL_ERROR_INVALID_VALUE) return "a wrong pointer is freed";
  if (api->allocate(1, 99, NULL, &pointer) == GPUPOOL_SUCCESS) return "an unknown device has memory";
  return strstr(api->last_error(), "99") ? NULL : "the error does not name the device";
}
