// A library that is preloaded too, and asks for what comes after it.

#define _GNU_SOURCE
#include <dlfcn.h>

void *asks_next(const char *symbol) { return dlsym(RTLD_NEXT, symbol); }
void *asks_next_version(const char *symbol, const char *version) { return dlvsym(RTLD_NEXT, symbol, version); }
