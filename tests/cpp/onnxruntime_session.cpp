// A session of ONNX Runtime itself, on its CPU provider, whose memory comes from gpupool: over simulated devices, whose memory
// the CPU can use. It takes a model with an input "x" and an output "y" of as many floats, and prints what it computed from
// numbers that rise from -1 to 1, a line each run; last what ONNX Runtime says where there is no memory.

#include <gpupool_onnxruntime.hpp>

#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "memory.hpp"

namespace {

const OrtApi &ort = *OrtGetApiBase()->GetApi(ORT_API_VERSION);

std::string failed(OrtStatus *status) {
  if (!status) return {};
  std::string why = ort.GetErrorMessage(status);
  ort.ReleaseStatus(status);
  return why;
}

void succeed(OrtStatus *status) {
  auto why = failed(status);
  if (!why.empty()) std::fprintf(stderr, "%s\n", why.c_str());
  EXPECT(why.empty());
}

// Runs the model, and returns why that failed, if it did.
std::string run(OrtSession *session, OrtValue *x, std::size_t count) {
  const char *inputs[] = {"x"}, *outputs[] = {"y"};
  OrtValue *y = nullptr;
  auto why = failed(ort.Run(session, nullptr, inputs, &x, 1, outputs, 1, &y));
  if (!why.empty()) return why;
  float *found = nullptr;
  succeed(ort.GetTensorMutableData(y, reinterpret_cast<void **>(&found)));
  EXPECT(gpupool::api().owns(found));
  for (std::size_t place = 0; place < count; ++place) std::printf("%a ", found[place]);
  std::printf("\n");
  ort.ReleaseValue(y);
  return {};
}

} // namespace

int main(int, char **arguments) {
  std::ifstream file(arguments[1], std::ios::binary);
  std::string model{std::istreambuf_iterator<char>(file), {}};
  const std::int64_t shape[] = {std::atol(arguments[2]), std::atol(arguments[3])};
  std::vector<float> numbers(static_cast<std::size_t>(shape[0] * shape[1]));
  for (std::size_t place = 0; place < numbers.size(); ++place)
    numbers[place] = -1 + 2 * static_cast<float>(place) / static_cast<float>(numbers.size());

  OrtEnv *env = nullptr;
  OrtSessionOptions *options = nullptr;
  OrtSession *session = nullptr;
  OrtMemoryInfo *host = nullptr;
  OrtValue *x = nullptr;
  succeed(ort.CreateEnv(ORT_LOGGING_LEVEL_FATAL, "gpupool", &env));
  gpupool::onnxruntime_allocator allocator(std::make_shared<gpupool::pool>(), "Cpu");
  succeed(ort.RegisterAllocator(env, &allocator));
  succeed(ort.CreateSessionOptions(&options));
  succeed(ort.AddSessionConfigEntry(options, "session.use_env_allocators", "1"));
  succeed(ort.CreateSessionFromArray(env, model.data(), model.size(), options, &session));
  EXPECT(live() > 0); // the weights
  succeed(ort.CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &host));
  succeed(ort.CreateTensorWithDataAsOrtValue(host, numbers.data(), numbers.size() * sizeof(float), shape, 2,
                                             ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &x));
  auto weights = live();
  for (int round = 0; round < 3; ++round) {
    EXPECT(run(session, x, numbers.size()).empty());
    EXPECT(live() == weights);
  }
  EXPECT(allocator.last_error().empty());

  gpupool::empty_cache();
  gpupool::check(gpupool::api().set_per_process_memory_fraction(0, 0));
  auto why = run(session, x, numbers.size());
  EXPECT(live() == weights);
  std::printf("%s\n", why.c_str());

  ort.ReleaseValue(x);
  ort.ReleaseMemoryInfo(host);
  ort.ReleaseSession(session);
  ort.ReleaseSessionOptions(options);
  EXPECT(live() == 0);
  succeed(ort.UnregisterAllocator(env, allocator.memory_info()));
  ort.ReleaseEnv(env);
}
