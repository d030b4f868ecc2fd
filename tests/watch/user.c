// A library that takes memory: of the driver, or with -DRUNTIME of the runtime.

#include <stddef.h>

#ifdef RUNTIME
extern int cudaMalloc(void **, size_t), cudaFree(void *);
int user_allocate(void **address, size_t bytes) { return cudaMalloc(address, bytes); }
int user_free(void *address) { return cudaFree(address); }
#else
extern int cuMemAlloc_v2(void **, size_t), cuMemFree_v2(void *);
int user_allocate(void **address, size_t bytes) { return cuMemAlloc_v2(address, bytes); }
int user_free(void *address) { return cuMemFree_v2(address); }
#endif
