// What torch_calls.cpp answers: JSON, of a value or of the error that PyTorch threw.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>

#include <iomanip>
#include <memory>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

static std::string text(const std::string &value) {
  std::ostringstream out;
  out << '"';
  for (char letter : value)
    if (letter == '"' || letter == '\\')
      out << '\\' << letter;
    else if (letter == '\n')
      out << "\\n";
    else
      out << letter;
  out << '"';
  return out.str();
}
static std::string json(bool value) { return value ? "true" : "false"; }
static std::string json(const std::string &value) { return text(value); }
static std::string json(double value) {
  std::ostringstream out;
  out << std::setprecision(17) << value;
  return out.str();
}
template <typename Number> requires std::is_integral_v<Number> static std::string json(Number value) {
  return std::to_string(value);
}
static std::string json(void *value) { return std::to_string(reinterpret_cast<uintptr_t>(value)); }
static std::string json(const std::shared_ptr<c10::GatheredContext> &context);
struct Json {
  std::string written;
};
static std::string json(const Json &value) { return value.written; }
template <typename Value> static std::string json(const std::vector<Value> &values) {
  std::string out = "[";
  for (auto &value : values) out += (out.size() > 1 ? "," : "") + json(value);
  return out + "]";
}
struct Object {
  std::string written = "{";
  template <typename Value> Object &add(const std::string &key, const Value &value) {
    written += (written.size() > 1 ? "," : "") + text(key) + ":" + json(value);
    return *this;
  }
  Json end() const { return {written + "}"}; }
};

template <typename Function> static const char *answer(Function function) {
  static thread_local std::string said;
  auto failed = [](const char *kind, const std::string &why) {
    return Object().add("error", std::string(kind)).add("text", why).end().written;
  };
  try {
    if constexpr (std::is_void_v<decltype(function())>) {
      function();
      said = "{\"is\":null}";
    } else {
      said = Object().add("is", function()).end().written;
    }
  } catch (const c10::OutOfMemoryError &error) {
    said = failed("OutOfMemoryError", error.what_without_backtrace());
  } catch (const c10::ValueError &error) {
    said = failed("ValueError", error.what_without_backtrace());
  } catch (const c10::NotImplementedError &error) {
    said = failed("NotImplementedError", error.what_without_backtrace());
  } catch (const c10::Error &error) {
    said = failed("RuntimeError", error.what_without_backtrace());
  } catch (const std::exception &error) {
    said = failed("exception", error.what());
  }
  return said.c_str();
}
