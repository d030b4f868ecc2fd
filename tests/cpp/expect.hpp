// How the programs of this folder say what is not as it should be.
#pragma once

#include <cstdio>
#include <cstdlib>

#define EXPECT(condition) \
  ((condition) ? void() : (std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition), std::exit(1)))
