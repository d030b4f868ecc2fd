// What the programs of this folder ask of memory and of errors.
#pragma once

#include <gpupool.hpp>

#include <cstring>

#include "expect.hpp"

inline constexpr std::size_t MIB = 1 << 20;

inline std::int64_t live() { return gpupool::device_stats().requested_bytes[GPUPOOL_ALL].current; }

inline gpupool_block block_at(const void *pointer) {
  gpupool_block block{};
  block.size = sizeof block;
  gpupool::check(gpupool::api().find_block(pointer, &block));
  return block;
}

// The call throws such an exception, whose text has these words.
template <class Exception, class Function> void throws(const char *words, Function function) {
  try {
    function();
    EXPECT(!"it succeeds");
  } catch (const Exception &error) {
    EXPECT(std::strstr(error.what(), words));
  }
}

// The call throws an error of this status, whose text has these words.
template <class Function> void throws(int status, const char *words, Function function) {
  try {
    function();
    EXPECT(!"it succeeds");
  } catch (const gpupool::error &error) {
    EXPECT(error.status() == status && std::strstr(error.what(), words));
  }
}
