// A double of OpenCV's core.hpp: its exceptions, and nothing else. The tests compile against OpenCV's own headers instead
// where GPUPOOL_OPENCV_INCLUDE names them.
#ifndef OPENCV_CORE_HPP
#define OPENCV_CORE_HPP

#include <exception>
#include <string>

#define CV_VERSION_MAJOR 4
#define CV_Error(code, text) cv::error(code, text, __func__, __FILE__, __LINE__)

namespace cv {

namespace Error {
enum Code { StsNoMem = -4, GpuApiCallError = -217 };
} // namespace Error

class Exception : public std::exception {
 public:
  Exception(int code, const std::string &text, const std::string &function, const std::string &file, int line);
  ~Exception() noexcept override;
  const char *what() const noexcept override;

  std::string msg;
  int code;
  std::string err, func, file;
  int line;
};

[[noreturn]] void error(int code, const std::string &text, const char *function, const char *file, int line);

} // namespace cv

#endif
