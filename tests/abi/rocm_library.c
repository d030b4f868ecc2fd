// An ABI double of one of ROCm's libraries whose handles are rocBLAS's, or that tells its version by a handle: library.c, and
// what NVIDIA's do not have.

#include "library.c"

#ifdef VERSION_OF_HANDLE
int VERSION_OF_HANDLE(void *handle, int *number) {
  CALL();
  alive("handle", handle);
  const int version[] = {VERSION};
  *number = 100000 * version[0] + 100 * version[1] + version[2];
  return 0;
}
#endif
#ifdef SET_OWN_WORKSPACE
// Which memory a handle has: rocBLAS's own, of its size or, with ROCBLAS_DEVICE_MEMORY_SIZE, of the user's, else a workspace
// that was given. To ask for rocBLAS's own where a handle has it frees that, waits for the device, and takes it from graphs.
static uintptr_t *given(void *handle) { return &alive("handle", handle)->bytes; }
int rocblas_is_managing_device_memory(void *handle) {
  CALL();
  return !*given(handle) && !getenv("ROCBLAS_DEVICE_MEMORY_SIZE");
}
int rocblas_is_user_managing_device_memory(void *handle) {
  CALL();
  return !*given(handle) && getenv("ROCBLAS_DEVICE_MEMORY_SIZE") != NULL;
}
int SET_OWN_WORKSPACE(void *handle, void *workspace, size_t bytes) {
  CALL();
  if (!workspace && !*given(handle)) wrong("rocBLAS's own memory is freed, which a graph may use");
  *given(handle) = (uintptr_t)workspace;
  return 0;
}
uintptr_t double_given_workspace(void *handle) { return *given(handle); }
#endif
