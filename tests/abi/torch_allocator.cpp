// A stand-in for allocator.cpp and host_allocator.cpp, with their functions: it notes who has a place and takes none.
// PYTORCH and REFUSES are of the stand-in for PyTorch's header.

#include <c10/cuda/CUDACachingAllocator.h>
#include <cuda_runtime_api.h>
#include <gpupool.h>

// Of PyTorch's libraries, so that it is linked to them.
extern "C" int torch_is_there();

#define EXPORT extern "C" __attribute__((visibility("default")))

// Counted by several threads; without <atomic>, which takes a compiler longer than all the rest.
static int installations, uninstallations, pinned_installations, pinned_uninstallations, is_linked;

static void count(int *what) { __atomic_add_fetch(what, 1, __ATOMIC_SEQ_CST); }

EXPORT const char *gpupool_torch_version(void) { return PYTORCH; }
EXPORT const char *gpupool_torch_install(const gpupool_api *api) {
  if (REFUSES) return "it is refused";
  if (api->version < 1 || api->malloc == nullptr) return "this is no table";
  __atomic_store_n(&is_linked, torch_is_there(), __ATOMIC_SEQ_CST);
  count(&installations);
  return nullptr;
}
EXPORT const char *gpupool_torch_uninstall(void) {
  if (REFUSES > 1) return "it is refused";
  count(&uninstallations);
  return nullptr;
}
EXPORT const char *gpupool_torch_install_pinned(const gpupool_api *api, void *get, void *set) {
  if (REFUSES) return "it is refused";
  if (api->version < 1 || !get || !set) return "these are no functions";
  count(&pinned_installations);
  return nullptr;
}
EXPORT const char *gpupool_torch_uninstall_pinned(void) {
  if (REFUSES > 1) return "it is refused";
  count(&pinned_uninstallations);
  return nullptr;
}
static unsigned long long adopted[5];
EXPORT const char *gpupool_torch_adopt(int device, uint64_t first, uint64_t second, gpupool_pool_id own) {
  if (REFUSES) return "it is refused";
  unsigned long long numbers[] = {(unsigned)device, first, second, own.first, own.second};
  for (int i = 0; i < 5; i++) adopted[i] = numbers[i];
  return nullptr;
}
EXPORT unsigned long long adopted_number(int which) { return adopted[which]; }
EXPORT int counted(int which) {
  int *counts[] = {&installations, &uninstallations, &pinned_installations, &pinned_uninstallations};
  return __atomic_load_n(counts[which], __ATOMIC_SEQ_CST);
}
