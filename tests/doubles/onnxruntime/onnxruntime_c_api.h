// A double of ONNX Runtime's onnxruntime_c_api.h: what an OrtAllocator is made of, the same names, signatures and order of
// functions as in 1.25 to 1.29, and of OrtApi only what gpupool calls. The tests compile against ONNX Runtime's own header
// instead where GPUPOOL_ONNXRUNTIME_INCLUDE names its folder.
#ifndef ONNXRUNTIME_C_API_H
#define ONNXRUNTIME_C_API_H

#include <cstddef>
#include <cstdint>

#ifndef ORT_API_VERSION
#define ORT_API_VERSION 29
#endif
#define ORT_API_CALL

extern "C" {

struct OrtEnv;
struct OrtStatus;
struct OrtMemoryInfo;
struct OrtKeyValuePairs;
struct OrtSyncStream;

enum OrtErrorCode { ORT_OK, ORT_FAIL };
enum OrtAllocatorType { OrtInvalidAllocator = -1, OrtDeviceAllocator = 0, OrtArenaAllocator = 1 };
enum OrtMemType { OrtMemTypeCPUInput = -2, OrtMemTypeCPUOutput = -1, OrtMemTypeDefault = 0 };

struct OrtAllocator {
  std::uint32_t version;
  void *(*Alloc)(OrtAllocator *, std::size_t);
  void (*Free)(OrtAllocator *, void *);
  const OrtMemoryInfo *(*Info)(const OrtAllocator *);
  void *(*Reserve)(OrtAllocator *, std::size_t);
  OrtStatus *(*GetStats)(const OrtAllocator *, OrtKeyValuePairs **) noexcept;
  void *(*AllocOnStream)(OrtAllocator *, std::size_t, OrtSyncStream *);
#if ORT_API_VERSION >= 25
  OrtStatus *(*Shrink)(OrtAllocator *) noexcept;
#endif
};

struct OrtApi {
  OrtStatus *(*CreateStatus)(OrtErrorCode, const char *) noexcept;
  const char *(*GetErrorMessage)(const OrtStatus *) noexcept;
  void (*ReleaseStatus)(OrtStatus *);
  OrtStatus *(*CreateMemoryInfo)(const char *, OrtAllocatorType, int, OrtMemType, OrtMemoryInfo **) noexcept;
  void (*ReleaseMemoryInfo)(OrtMemoryInfo *);
  void (*CreateKeyValuePairs)(OrtKeyValuePairs **);
  void (*AddKeyValuePair)(OrtKeyValuePairs *, const char *, const char *);
  void *(*SyncStream_GetHandle)(OrtSyncStream *) noexcept;
};

struct OrtApiBase {
  const OrtApi *(*GetApi)(std::uint32_t) noexcept;
};

const OrtApiBase *OrtGetApiBase() noexcept;
}

#endif
