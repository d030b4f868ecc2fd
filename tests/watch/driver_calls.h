// The functions of the driver that programs of this folder call, and of its double, tests/abi/libcuda.c.

#ifdef __cplusplus
extern "C" {
#endif
int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(void **, int);
int cuDevicePrimaryCtxRelease_v2(int);
int cuDevicePrimaryCtxReset_v2(int);
int cuCtxCreate_v2(void **, unsigned, int);
int cuCtxCreate_v3(void **, void *, int, unsigned, int);
int cuCtxCreate_v4(void **, void *, unsigned, int);
int cuCtxDestroy_v2(void *);
int cuCtxSetCurrent(void *);
int cuCtxGetCurrent(void **);
int cuMemAlloc_v2(Address *, size_t);
int cuMemAllocPitch_v2(Address *, size_t *, size_t, size_t, unsigned);
int cuMemAllocManaged(Address *, size_t, unsigned);
int cuMemAllocAsync(Address *, size_t, void *);
int cuMemAllocAsync_ptsz(Address *, size_t, void *);
int cuMemAllocFromPoolAsync(Address *, size_t, void *, void *);
int cuMemAllocFromPoolAsync_ptsz(Address *, size_t, void *, void *);
int cuMemFree_v2(Address);
int cuMemFreeAsync(Address, void *);
int cuMemFreeAsync_ptsz(Address, void *);
int cuMemCreate(Address *, size_t, const Properties *, Address);
int cuMemRetainAllocationHandle(Address *, void *);
int cuMemRelease(Address);
int cuMemAddressReserve(Address *, size_t, size_t, Address, Address);
int cuMemMap(Address, size_t, size_t, Address, Address);
int cuMemUnmap(Address, size_t);
int cuDeviceGetMemPool(void **, int);
int cuMemPoolCreate(void **, const Properties *);
int cuStreamCreate(void **, unsigned);
unsigned long double_used(int);
void double_set_capture(void *, int);
int double_calls(const char *);
#ifdef __cplusplus
}
#endif

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, MIB = 1 << 20, PAGE = 2 << 20 };
#define DO(call) \
  do { \
    int status = call; \
    CHECK(!status, "status %d", status); \
  } while (0)

// Makes a device's primary context current, as the runtime does.
static inline void use_device(int device) {
  void *context;
  DO(cuInit(0));
  DO(cuDevicePrimaryCtxRetain(&context, device));
  DO(cuCtxSetCurrent(context));
}
// What is counted must be what the driver has given.
#define IS_RIGHT(device, count) HOLDS(NULL, device, double_used(device), count)
