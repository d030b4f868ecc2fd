// An ABI double of the CUDA runtime, over the double of the driver: what PyTorch's libc10_cuda.so calls. Both count the
// same memory, and a stream of one is a stream of the other. Compiled with NVIDIA's headers, so that its signatures are
// theirs.

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#undef cudaGetDeviceProperties

enum { MAX_DEVICES = 8, MAX_BLOCKS = 1 << 16 };

static _Thread_local cudaError_t last_error;
static _Thread_local int peers[MAX_DEVICES][MAX_DEVICES];
// The device of each allocation, which the runtime frees whichever is current.
static struct { void *address; int device; } blocks[MAX_BLOCKS];
// Which function copied last.
static const char *copied_by = "";

const char *double_copied_by(void) { return copied_by; }

static cudaError_t answer(CUresult result) {
  // Statuses of both have the same numbers.
  if (result) last_error = (cudaError_t)result;
  return (cudaError_t)result;
}

// Makes a device's primary context current, as the runtime does at a thread's first call.
static cudaError_t bind_device(int device) {
  CUcontext context;
  CUresult result = cuInit(0);
  if (!result) result = cuDevicePrimaryCtxRetain(&context, device);
  if (!result) result = cuCtxSetCurrent(context);
  return answer(result);
}

static int current_device(void) {
  CUdevice device = 0;
  CUcontext context = NULL;
  cuCtxGetCurrent(&context);
  if (context)
    cuCtxGetDevice(&device);
  else
    bind_device(0);
  return device;
}

cudaError_t cudaGetDeviceCount(int *count) {
  CUresult result = cuInit(0);
  return answer(result ? result : cuDeviceGetCount(count));
}
cudaError_t cudaGetDevice(int *device) {
  *device = current_device();
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) { return bind_device(device); }
cudaError_t cudaDriverGetVersion(int *version) { return answer(cuDriverGetVersion(version)); }
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device) {
  size_t bytes;
  CUresult result = cuDeviceTotalMem(&bytes, device);
  memset(properties, 0, sizeof *properties);
  strcpy(properties->name, "double");
  properties->major = 9;
  properties->totalGlobalMem = bytes;
  properties->multiProcessorCount = 132;
  return answer(result);
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize(void) { return cudaSuccess; }

const char *cudaGetErrorName(cudaError_t error) {
  static _Thread_local char name[32];
  snprintf(name, sizeof name, "cudaError %d", error);
  return error ? name : "cudaSuccess";
}
const char *cudaGetErrorString(cudaError_t error) { return cudaGetErrorName(error); }
cudaError_t cudaGetLastError(void) {
  cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}
cudaError_t cudaPeekAtLastError(void) { return last_error; }

cudaError_t cudaMalloc(void **address, size_t bytes) {
  CUdeviceptr place;
  int device = current_device(), index = 0;
  cudaError_t error = answer(cuMemAlloc(&place, bytes));
  if (error) return error;
  while (blocks[index].address) index++;
  blocks[index].address = *address = (void *)place;
  blocks[index].device = device;
  return error;
}
cudaError_t cudaFree(void *address) {
  int before = current_device(), index = 0;
  if (!address) return cudaSuccess;
  while (blocks[index].address != address)
    if (++index == MAX_BLOCKS) abort();
  blocks[index].address = NULL;
  bind_device(blocks[index].device);
  cudaError_t error = answer(cuMemFree((CUdeviceptr)address));
  bind_device(before);
  return error;
}
cudaError_t cudaMemGetInfo(size_t *free, size_t *total) {
  current_device();
  return answer(cuMemGetInfo(free, total));
}

static cudaError_t copy(const char *function, void *target, const void *source, size_t bytes) {
  copied_by = function;
  memmove(target, source, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void *target, const void *source, size_t bytes, enum cudaMemcpyKind kind) {
  return copy(__func__, target, source, bytes);
}
cudaError_t cudaMemcpyAsync(
    void *target, const void *source, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream) {
  return copy(__func__, target, source, bytes);
}
cudaError_t cudaMemcpyPeerAsync(
    void *target, int target_device, const void *source, int source_device, size_t bytes, cudaStream_t stream) {
  return copy(__func__, target, source, bytes);
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
  return answer(cuDeviceCanAccessPeer(can, device, peer));
}
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  int device = current_device(), count;
  cuDeviceGetCount(&count);
  if (peer >= count) return answer(CUDA_ERROR_INVALID_DEVICE);
  if (flags) return answer(CUDA_ERROR_INVALID_VALUE);
  if (peers[device][peer]++) return answer(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) {
  current_device();
  return answer(cuStreamCreate(stream, flags));
}
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) {
  *priority = 0;
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) { return answer(cuStreamQuery(stream)); }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return answer(cuStreamSynchronize(stream)); }
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  return answer(cuStreamWaitEvent(stream, event, flags));
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
  current_device();
  return answer(cuStreamIsCapturing(stream, (CUstreamCaptureStatus *)status));
}
cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) {
  return answer(cuThreadExchangeStreamCaptureMode((CUstreamCaptureMode *)mode));
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
  current_device();
  return answer(cuEventCreate(event, flags));
}
cudaError_t cudaEventDestroy(cudaEvent_t event) { return answer(cuEventDestroy(event)); }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) { return answer(cuEventRecord(event, stream)); }
cudaError_t cudaEventQuery(cudaEvent_t event) { return answer(cuEventQuery(event)); }
cudaError_t cudaEventSynchronize(cudaEvent_t event) { return answer(cuEventSynchronize(event)); }

// What another process would get: the address itself, which is of this process.
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *address) {
  memset(handle, 0, sizeof *handle);
  memcpy(handle, &address, sizeof address);
  return cudaSuccess;
}
cudaError_t cudaIpcOpenMemHandle(void **address, cudaIpcMemHandle_t handle, unsigned flags) {
  memcpy(address, &handle, sizeof *address);
  return cudaSuccess;
}
cudaError_t cudaIpcCloseMemHandle(void *address) { return address ? cudaSuccess : answer(CUDA_ERROR_INVALID_VALUE); }

static CUresult unsupported(void) { return CUDA_ERROR_NOT_SUPPORTED; }
cudaError_t cudaGetDriverEntryPointByVersion(
    const char *name, void **function, unsigned version, unsigned long long flags,
    enum cudaDriverEntryPointQueryResult *result) {
  void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  *function = dlsym(driver, name);
  // A driver has them all.
  if (!*function) *function = unsupported;
  if (result) *result = cudaDriverEntryPointSuccess;
  dlclose(driver);
  return cudaSuccess;
}

// What libc10_cuda.so names and its native allocator does not call.
#define UNUSED(name, ...) cudaError_t name(__VA_ARGS__) { return answer(CUDA_ERROR_NOT_SUPPORTED); }
UNUSED(cudaMallocAsync, void **address, size_t bytes, cudaStream_t stream)
UNUSED(cudaFreeAsync, void *address, cudaStream_t stream)
UNUSED(cudaDeviceGetDefaultMemPool, cudaMemPool_t *pool, int device)
UNUSED(cudaMemPoolGetAttribute, cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value)
UNUSED(cudaMemPoolSetAttribute, cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value)
UNUSED(cudaMemPoolSetAccess, cudaMemPool_t pool, const struct cudaMemAccessDesc *access, size_t count)
UNUSED(cudaMemPoolTrimTo, cudaMemPool_t pool, size_t bytes)
UNUSED(cudaDeviceGetGraphMemAttribute, int device, enum cudaGraphMemAttributeType attribute, void *value)
UNUSED(cudaDeviceSetGraphMemAttribute, int device, enum cudaGraphMemAttributeType attribute, void *value)
UNUSED(cudaEventElapsedTime, float *milliseconds, cudaEvent_t begin, cudaEvent_t end)
UNUSED(cudaGraphNodeGetDependencies, cudaGraphNode_t node, cudaGraphNode_t *nodes, cudaGraphEdgeData *edges,
       size_t *count)
UNUSED(cudaStreamGetCaptureInfo, cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id,
       cudaGraph_t *graph, const cudaGraphNode_t **nodes, const cudaGraphEdgeData **edges, size_t *count)
