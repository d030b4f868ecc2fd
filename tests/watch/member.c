// A library that gives way, as gpupool does, in the way that the program says, and calls the driver itself.

#include "watched.h"

uint64_t (*member_gives)(int device, uint64_t bytes);

static uint64_t give_way(int device, uint64_t bytes) { return member_gives(device, bytes); }

int member_joins(void) { return table()->join(give_way, has_nothing); }
void *member_finds(void *handle, const char *symbol) { return dlsym(handle, symbol); }
