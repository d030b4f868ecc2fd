// A library that gpupool takes for libgpupool_watch.so, and by which a program asks it for memory as that does: on
// simulated devices, which no driver has.

#include "watched.h"

static GiveWay give_way;
static int join(GiveWay joins, Reserved has) {
  (void)has;
  give_way = joins;
  return 1;
}
static void holders(int device, Tell tell, void *context) {
  tell(context, "NCCL", "/lib/libnccl.so.2", 5 << 20, 6 << 20, 7);
}
static uint64_t process_bytes(int device) { return 0; }

const Table gpupool_watch = {sizeof(Table), join, holders, process_bytes};

// All bits where gpupool has not joined.
uint64_t asks_to_give(int device, uint64_t bytes) { return give_way ? give_way(device, bytes) : UINT64_MAX; }
