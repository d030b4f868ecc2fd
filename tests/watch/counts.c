// What is counted is what the driver has given, whatever a program does: one case for each name, on the double of the
// driver.

#include "watched.h"
#include "driver_calls.h"

#include <pthread.h>

static Address allocated(size_t bytes) {
  Address address = 0;
  DO(cuMemAlloc_v2(&address, bytes));
  return address;
}

static void every_kind_of_allocation(void) {
  Address addresses[8];
  size_t pitch = 0;
  void *pool;
  use_device(0);
  DO(cuDeviceGetMemPool(&pool, 0));
  DO(cuMemAlloc_v2(&addresses[0], 1000));
  DO(cuMemAllocPitch_v2(&addresses[1], &pitch, 700, 3, 4));
  CHECK(pitch == 1024, "%zu", pitch);
  DO(cuMemAllocManaged(&addresses[2], 3000, 1));
  DO(cuMemAllocAsync(&addresses[3], 4000, NULL));
  DO(cuMemAllocAsync_ptsz(&addresses[4], 5000, NULL));
  DO(cuMemAllocFromPoolAsync(&addresses[5], 6000, pool, NULL));
  DO(cuMemAllocFromPoolAsync_ptsz(&addresses[6], 7000, pool, NULL));
  IS_RIGHT(0, 7);
  DO(cuMemFree_v2(addresses[0]));
  DO(cuMemFree_v2(addresses[1]));
  DO(cuMemFreeAsync(addresses[2], NULL));
  DO(cuMemFreeAsync_ptsz(addresses[3], NULL));
  IS_RIGHT(0, 3);
  for (int index = 4; index < 7; index++) DO(cuMemFreeAsync(addresses[index], NULL));
  IS_RIGHT(0, 0);
  CHECK(held_by(NULL, 0).peak == 1000 + 3 * 1024 + 3000 + 4000 + 5000 + 6000 + 7000, "%lu", held_by(NULL, 0).peak);
}

static void each_device_has_its_own(void) {
  use_device(1);
  Address address = allocated(MIB);
  IS_RIGHT(0, 0);
  IS_RIGHT(1, 1);
  // Physical memory is of the device that it says, whichever is current.
  Properties properties = {1, 0, 1, 0, NULL, {0}};
  Address handle;
  DO(cuMemCreate(&handle, PAGE, &properties, 0));
  IS_RIGHT(0, 1);
  DO(cuMemRelease(handle));
  DO(cuMemFree_v2(address));
  IS_RIGHT(0, 0);
  IS_RIGHT(1, 0);
}

static void of_a_pool_it_is_the_pool_s_device_whichever_is_current(void) {
  void *pool, *stream;
  Address addresses[2];
  use_device(1);
  DO(cuDeviceGetMemPool(&pool, 1));
  DO(cuStreamCreate(&stream, 0));
  use_device(0);
  DO(cuMemAllocFromPoolAsync(&addresses[0], MIB, pool, NULL));
  DO(cuMemAllocAsync(&addresses[1], 2 * MIB, stream));
  IS_RIGHT(0, 0);
  IS_RIGHT(1, 2);
  use_device(1);
  for (int index = 0; index < 2; index++) DO(cuMemFreeAsync(addresses[index], stream));
  IS_RIGHT(1, 0);
}

// A graph that is captured has the memory, when it runs.
static void of_a_capture_nothing_is_counted(void) {
  void *pool, *stream;
  Address addresses[3];
  use_device(0);
  DO(cuDeviceGetMemPool(&pool, 0));
  DO(cuStreamCreate(&stream, 0));
  DO(cuMemAllocAsync(&addresses[0], MIB, stream));
  double_set_capture(stream, 1);
  DO(cuMemAllocAsync(&addresses[1], 2 * MIB, stream));
  DO(cuMemAllocFromPoolAsync(&addresses[2], 3 * MIB, pool, stream));
  IS_RIGHT(0, 1);
  DO(cuMemFreeAsync(addresses[1], stream));
  double_set_capture(stream, 0);
  IS_RIGHT(0, 1);
  DO(cuMemFreeAsync(addresses[0], stream));
  IS_RIGHT(0, 0);
}

static void of_the_host_nothing_is_counted(void) {
  use_device(0);
  Properties properties = {1, 0, 3, 0, NULL, {0}};
  Address handle;
  DO(cuMemCreate(&handle, PAGE, &properties, 0));
  HOLDS(NULL, 0, 0, 0);
  DO(cuMemRelease(handle));
  void *pool;
  Address address;
  DO(cuMemPoolCreate(&pool, &properties));
  DO(cuMemAllocFromPoolAsync(&address, MIB, pool, NULL));
  HOLDS(NULL, 0, 0, 0);
  DO(cuMemFreeAsync(address, NULL));
}

static void what_fails_changes_nothing(void) {
  use_device(0);
  Address address = allocated(MIB), other;
  Properties properties = {1, 0, 1, 0, NULL, {0}};
  setenv("FAKE_FAIL", "cuMemFree_v2=1,cuMemFreeAsync=700,cuMemAlloc_v2=1,cuMemCreate=2,cuCtxDestroy_v2=1", 1);
  CHECK(cuMemFree_v2(address) == INVALID_VALUE && cuMemFreeAsync(address, NULL) == 700, "frees that succeed");
  CHECK(cuMemAlloc_v2(&other, MIB) == INVALID_VALUE && cuMemCreate(&other, PAGE, &properties, 0) == 2, "they succeed");
  CHECK(cuCtxDestroy_v2(NULL) == INVALID_VALUE, "it succeeds");
  IS_RIGHT(0, 1);
  setenv("FAKE_FAIL", "cuMemUnmap=1,cuMemRelease=1,cuMemMap=1,cuDevicePrimaryCtxReset_v2=1", 1);
  Address handle, place;
  DO(cuMemCreate(&handle, PAGE, &properties, 0));
  DO(cuMemAddressReserve(&place, PAGE, 0, 0, 0));
  CHECK(cuMemMap(place, PAGE, 0, handle, 0) && cuMemRelease(handle) && cuDevicePrimaryCtxReset_v2(0), "they succeed");
  IS_RIGHT(0, 2);
  unsetenv("FAKE_FAIL");
  DO(cuMemMap(place, PAGE, 0, handle, 0));
  DO(cuMemRelease(handle));
  setenv("FAKE_FAIL", "cuMemUnmap=1", 1);
  CHECK(cuMemUnmap(place, PAGE), "it succeeds");
  IS_RIGHT(0, 2);
  unsetenv("FAKE_FAIL");
  DO(cuMemUnmap(place, PAGE));
  DO(cuMemFree_v2(address));
  IS_RIGHT(0, 0);
}

// Does something with one piece of physical memory: C creates it, T retains a handle of it by where it is mapped, R
// releases one, M and m map it at either of two places, U and u take that back.
static Address places[2], handle;
static void act(char what) {
  static const Properties properties = {1, 0, 1, 0, NULL, {0}};
  Address again;
  switch (what) {
    case 'C': DO(cuMemCreate(&handle, PAGE, &properties, 0)); break;
    case 'R': DO(cuMemRelease(handle)); break;
    case 'M': DO(cuMemMap(places[0], PAGE, 0, handle, 0)); break;
    case 'm': DO(cuMemMap(places[1], PAGE, 0, handle, 0)); break;
    case 'U': DO(cuMemUnmap(places[0], PAGE)); break;
    case 'u': DO(cuMemUnmap(places[1], PAGE)); break;
    default: DO(cuMemRetainAllocationHandle(&again, (void *)(places[what == 't'] + PAGE / 2)));
  }
}

typedef struct { int handles, first, second; } Physical;
static int is_possible(const Physical *now, char what) {
  switch (what) {
    case 'C': return !now->handles && !now->first && !now->second;
    case 'R': return now->handles;
    case 'M': return now->handles && !now->first;
    case 'm': return now->handles && !now->second;
    case 'U': return now->first;
    case 'u': return now->second;
    case 'T': return now->first && now->handles < 3;
    default: return now->second && now->handles < 3;
  }
}
static Physical after(Physical now, char what) {
  now.handles += what == 'C' || what == 'T' || what == 't' ? 1 : what == 'R' ? -1 : 0;
  now.first = what == 'M' ? 1 : what == 'U' ? 0 : now.first;
  now.second = what == 'm' ? 1 : what == 'u' ? 0 : now.second;
  return now;
}
// Goes on with everything that may come next, after what has been done.
static int every_order_of(char *done, int length, Physical now, int most) {
  int count = 0;
  for (const char *next = "CRMmUuTt"; *next && length < most; next++) {
    if (!is_possible(&now, *next)) continue;
    done[length] = *next;
    Physical then = after(now, *next);
    // From the beginning, as nothing of it can be taken back.
    for (int index = 0; index <= length; index++) act(done[index]);
    int is_there = then.handles || then.first || then.second;
    Held held = held_by(NULL, 0);
    CHECK(held.bytes == double_used(0) && held.count == (uint64_t)is_there && held.bytes == (is_there ? PAGE : 0),
          "%d MiB in %d after %.*s", (int)(held.bytes >> 20), (int)held.count, length + 1, done);
    for (int left = then.handles; left; left--) act('R');
    if (then.first) act('U');
    if (then.second) act('u');
    CHECK(!double_used(0) && !held_by(NULL, 0).bytes, "it is left after %.*s and all given back", length + 1, done);
    count += 1 + every_order_of(done, length + 1, then, most);
  }
  return count;
}
static void physical_memory_in_every_order(void) {
  char done[8];
  use_device(0);
  for (int index = 0; index < 2; index++) DO(cuMemAddressReserve(&places[index], PAGE, 0, 0, 0));
  int count = every_order_of(done, 0, (Physical){0, 0, 0}, 7);
  CHECK(count > 1000, "only %d orders", count);
}

static void a_context_takes_its_memory_with_it(void) {
  void *primary, *contexts[3];
  use_device(0);
  DO(cuCtxGetCurrent(&primary));
  allocated(MIB);
  DO(cuCtxCreate_v2(&contexts[0], 0, 0));
  allocated(2 * MIB);
  DO(cuCtxCreate_v3(&contexts[1], NULL, 0, 0, 0));
  allocated(3 * MIB);
  DO(cuCtxCreate_v4(&contexts[2], NULL, 0, 0));
  allocated(4 * MIB);
  allocated(5 * MIB);
  IS_RIGHT(0, 5);
  DO(cuCtxDestroy_v2(contexts[2]));
  IS_RIGHT(0, 3);
  DO(cuCtxDestroy_v2(contexts[0]));
  IS_RIGHT(0, 2);
  // What others were made beside stays.
  DO(cuDevicePrimaryCtxReset_v2(0));
  CHECK(double_used(0) == 3 * MIB, "%lu", double_used(0));
  IS_RIGHT(0, 1);
  DO(cuCtxDestroy_v2(contexts[1]));
  IS_RIGHT(0, 0);
}

// As the driver's reference has it of cuCtxDestroy and cudaDeviceReset.
static void memory_of_pools_outlives_contexts(void) {
  void *context;
  Address addresses[2];
  use_device(0);
  DO(cuMemAllocAsync(&addresses[0], MIB, NULL));
  DO(cuCtxCreate_v2(&context, 0, 0));
  DO(cuMemAllocAsync(&addresses[1], 2 * MIB, NULL));
  DO(cuCtxDestroy_v2(context));
  use_device(0);
  IS_RIGHT(0, 2);
  DO(cuDevicePrimaryCtxReset_v2(0));
  IS_RIGHT(0, 2);
  for (int index = 0; index < 2; index++) DO(cuMemFreeAsync(addresses[index], NULL));
  IS_RIGHT(0, 0);
}

static void a_primary_context_that_others_have_too_keeps_its_memory(void) {
  use_device(0);
  use_device(0);
  allocated(MIB);
  DO(cuDevicePrimaryCtxRelease_v2(0));
  IS_RIGHT(0, 1);
  DO(cuDevicePrimaryCtxRelease_v2(0));
  IS_RIGHT(0, 0);
  CHECK(cuDevicePrimaryCtxRelease_v2(0), "it succeeds");
  // It is another one then.
  use_device(0);
  allocated(MIB);
  IS_RIGHT(0, 1);
  DO(cuDevicePrimaryCtxReset_v2(0));
  IS_RIGHT(0, 0);
}

enum { THREADS = 8, ROUNDS = 1000 };
static void *allocates(void *number) {
  use_device((int)(size_t)number % 2);
  Address kept[4] = {0};
  for (int round = 0; round < ROUNDS; round++) {
    Address *place = &kept[round % 4];
    if (*place) DO(cuMemFree_v2(*place));
    *place = allocated(4096);
  }
  for (int index = 0; index < 4; index++) DO(cuMemFree_v2(kept[index]));
  return NULL;
}
static void many_threads_at_once(void) {
  pthread_t threads[THREADS];
  for (size_t index = 0; index < THREADS; index++) pthread_create(&threads[index], NULL, allocates, (void *)index);
  // Who looks meanwhile is told no more than there was.
  for (int round = 0; round < 100; round++) {
    Held held = held_by(NULL, 0);
    CHECK(held.bytes <= THREADS / 2 * 4 * 4096 && held.bytes % 4096 == 0, "%lu", held.bytes);
  }
  for (int index = 0; index < THREADS; index++) pthread_join(threads[index], NULL);
  IS_RIGHT(0, 0);
  IS_RIGHT(1, 0);
}

static Address of_a_thread;
static void *allocates_and_ends(void *unused) {
  use_device(0);
  of_a_thread = allocated(MIB);
  return NULL;
}
static void a_thread_that_ends_leaves_what_it_took(void) {
  pthread_t thread;
  use_device(0);
  pthread_create(&thread, NULL, allocates_and_ends, NULL);
  pthread_join(thread, NULL);
  IS_RIGHT(0, 1);
  DO(cuMemFree_v2(of_a_thread));
  IS_RIGHT(0, 0);
}

static const Case cases[] = {
    CASE(every_kind_of_allocation), CASE(each_device_has_its_own), CASE(of_a_pool_it_is_the_pool_s_device_whichever_is_current),
    CASE(of_a_capture_nothing_is_counted), CASE(of_the_host_nothing_is_counted),
    CASE(what_fails_changes_nothing), CASE(physical_memory_in_every_order), CASE(a_context_takes_its_memory_with_it),
    CASE(memory_of_pools_outlives_contexts), CASE(a_primary_context_that_others_have_too_keeps_its_memory), CASE(many_threads_at_once),
    CASE(a_thread_that_ends_leaves_what_it_took)};

int main(int count, char **arguments) { return run_case(cases, sizeof cases / sizeof *cases, count, arguments); }
