/* gpupool.h: gpupool's device memory, and pinned memory of the host, for C and C++.
 *
 * All functions are in one table. gpupool_get_api, of the library libgpupool.so, returns it, and in a Python process it is
 * behind gpupool.c_api.capsule. Its layout only grows: `version` is 2 for what is here, `size` is the table's bytes in the
 * gpupool that runs, so a program may use what lies within `size`.
 *
 * Every function may be called from any thread, and no exception or panic leaves one. Those that return an int return
 * GPUPOOL_SUCCESS or another gpupool_status; after a failure `last_error` says what failed, and what to do. Devices are
 * ordinals as the runtime numbers them. Streams are cudaStream_t or hipStream_t; null is the legacy default stream.
 */
#ifndef GPUPOOL_H
#define GPUPOOL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GPUPOOL_API_VERSION 2

typedef enum gpupool_status {
  GPUPOOL_SUCCESS = 0,
  GPUPOOL_ERROR_OUT_OF_MEMORY = 1,  /* also where a limit is reached */
  GPUPOOL_ERROR_INVALID_VALUE = 2,  /* an argument is wrong: no block of gpupool's, an unknown device or pool */
  GPUPOOL_ERROR_DRIVER = 3,         /* the driver refused a call */
  GPUPOOL_ERROR_FORKED = 4,         /* this process was forked from one that had used a GPU */
  GPUPOOL_ERROR_OTHER = 5,
  GPUPOOL_ERROR_ASLEEP = 6          /* the pool is asleep: wake it first */
} gpupool_status;

/* The id of a pool: (0, n) of one made by a user, (n, 0) of one made for graphs, (0, 0) of a device's default pool. */
typedef struct gpupool_pool_id {
  uint64_t first;
  uint64_t second;
} gpupool_pool_id;

/* A use of a pool, which keeps it. */
typedef struct gpupool_pool gpupool_pool;
/* Which blocks of a pool were live at a moment. */
typedef struct gpupool_checkpoint gpupool_checkpoint;

/* Where a pool's memory comes from, and goes back to, if not from the driver. `allocate` returns null where there is
 * none. Called without any lock of gpupool's held. `release` is called once, when the pool is gone and all its memory
 * was freed. */
typedef struct gpupool_source {
  void *context;
  void *(*allocate)(void *context, uint64_t bytes, int device, void *stream);
  void (*free)(void *context, void *pointer, uint64_t bytes, int device, void *stream);
  void (*release)(void *context);
} gpupool_source;

/* How a pool behaves. */
typedef struct gpupool_pool_options {
  uint64_t size;                /* of this struct */
  int for_graphs;               /* its memory is part of graphs, whether a stream is captured or not */
  int use_on_oom;               /* what it has free serves other pools when memory is short */
  int no_split;                 /* each segment serves one block at a time, and stays where it is until pool_trim */
  const char *name;             /* what statistics and errors say of it beside its id, or null; copied */
  const gpupool_source *source; /* or null; copied */
} gpupool_pool_options;

/* A block that a caller holds, and the memory without a gap that it is cut from. */
typedef struct gpupool_block {
  uint64_t size; /* of this struct */
  void *address;
  uint64_t bytes;     /* as cut */
  uint64_t requested; /* as asked for; 0 if it is free */
  int is_live;        /* a caller holds it */
  int is_waiting;     /* it was freed and waits for streams */
  int device; /* of pinned memory -1 less the number of its NUMA node */
  void *stream;
  gpupool_pool_id pool;
  void *segment;
  uint64_t segment_bytes;
  uint32_t stack; /* under which it was allocated, where that was recorded; else 0 */
} gpupool_block;

/* Memory without a gap, of one pool and one stream. */
typedef struct gpupool_segment {
  uint64_t size; /* of this struct */
  int device;
  void *address;
  uint64_t bytes;
  void *stream;
  gpupool_pool_id pool;
  int is_movable; /* of pages that can be mapped elsewhere; else one allocation of the driver's, or the pool's source */
  int is_small;   /* all its blocks are of at most a MiB */
  uint32_t stack; /* of the request for which it came, where that was recorded; else 0 */
} gpupool_segment;

/* Actions as PyTorch's snapshots number them. */
typedef enum gpupool_action {
  GPUPOOL_ALLOC = 0,
  GPUPOOL_FREE_REQUESTED = 1,
  GPUPOOL_FREE_COMPLETED = 2,
  GPUPOOL_SEGMENT_ALLOC = 3,
  GPUPOOL_SEGMENT_FREE = 4,
  GPUPOOL_SEGMENT_MAP = 5,
  GPUPOOL_SEGMENT_UNMAP = 6,
  GPUPOOL_SNAPSHOT = 7,
  GPUPOOL_OOM = 8 /* `address` is the bytes that the driver still had */
} gpupool_action;

/* One thing that the allocator did. */
typedef struct gpupool_event {
  uint64_t size; /* of this struct */
  int action;
  int device;
  uint64_t address;
  uint64_t bytes;
  void *stream;
  gpupool_pool_id pool;
  uint64_t unix_micros;
  uint32_t stack; /* 0 for none */
} gpupool_event;

/* What snapshot calls, in this order: each segment with its blocks by address, then events from the first to the
 * last. */
typedef struct gpupool_snapshot_visitor {
  uint64_t size; /* of this struct */
  void *context;
  void (*segment)(void *context, const gpupool_segment *segment);
  void (*block)(void *context, const gpupool_block *block);
  void (*event)(void *context, const gpupool_event *event); /* or null: no events */
} gpupool_snapshot_visitor;

/* What is recorded. Numbers of stacks come from `take_stack`, which is called with no lock of gpupool's held: 0 for
 * none, else a number whose highest bit is set, for the others are those of Python's stacks, which are 0 here. */
typedef struct gpupool_recording {
  uint64_t size; /* of this struct */
  uint64_t most_events;           /* the newest are kept; 0 for no events, but stacks of live blocks */
  int live_stacks;                /* the stack of each live block */
  int alloc_stacks;               /* of each allocation among the events */
  int free_stacks;                /* of each free among them */
  uint32_t skipped_actions;       /* a bit, 1 << action, for each that is left out */
  uint32_t (*take_stack)(int is_free); /* for a free, 1, or else 0; or null: no stacks */
  int forget;                     /* the events before */
} gpupool_recording;

/* As torch.cuda.memory_stats has it. `allocated` and `freed` are sums since the process began. */
typedef struct gpupool_stat {
  int64_t current;
  int64_t peak;
  int64_t allocated;
  int64_t freed;
} gpupool_stat;

/* Of all requests; of those of at most a MiB; of those of more. */
enum { GPUPOOL_ALL = 0, GPUPOOL_SMALL = 1, GPUPOOL_LARGE = 2 };

/* Statistics of a device, all pools together. Peaks are exact where one thread works on one stream; else never less
 * than what was, nor more than what was reserved. Of inactive_split they are of what was found when device_stats was
 * called. A piece of at most 2 MiB counts as small among `segment` and `reserved_bytes`, whatever stands in it. */
typedef struct gpupool_device_stats {
  uint64_t size; /* of this struct */
  gpupool_stat allocation[3];         /* blocks that callers hold */
  gpupool_stat segment[3];            /* pieces of memory that the driver gave */
  gpupool_stat active[3];             /* blocks held, or freed and waiting for streams */
  gpupool_stat inactive_split[3];     /* free blocks beside ones that are held */
  gpupool_stat allocated_bytes[3];
  gpupool_stat reserved_bytes[3];
  gpupool_stat active_bytes[3];
  gpupool_stat inactive_split_bytes[3];
  gpupool_stat requested_bytes[3];
  int64_t alloc_retries; /* requests for which memory was given back to the driver, and that were tried again */
  int64_t ooms;          /* requests that failed for want of memory */
  int64_t device_allocs; /* calls of the driver that brought memory */
  int64_t device_frees;  /* calls of the driver that gave memory back */
} gpupool_device_stats;

/* How long calls of one kind took that did what they should, in microseconds. */
typedef struct gpupool_durations {
  uint64_t size; /* of this struct */
  int64_t total;
  int64_t max; /* since peaks were reset; 0 for none */
  int64_t min; /* the same */
  int64_t count;
} gpupool_durations;

/* Room for the token of a shared block. */
enum { GPUPOOL_TOKEN_BYTES = 128 };
/* Memory of another process. */
typedef struct gpupool_attached gpupool_attached;

/* What becomes of the content of a pool that falls asleep. */
typedef enum gpupool_backup {
  GPUPOOL_BACKUP_NONE = 0, /* it is given up */
  GPUPOOL_BACKUP_HOST = 1  /* it is copied to pinned memory of the host, and back when the pool wakes */
} gpupool_backup;

typedef struct gpupool_api {
  uint64_t version;
  uint64_t size;

  /* For PyTorch's pluggable allocators: null where there is no memory. */
  void *(*malloc)(ptrdiff_t bytes, int device, void *stream);
  /* Frees on this stream, which may be another than the one of before; what it cannot free it leaves. */
  void (*free)(void *pointer, ptrdiff_t bytes, int device, void *stream);
  /* For cupy.cuda.CFunctionAllocator, on gpupool's current stream. */
  void *(*cupy_malloc)(void *unused, size_t bytes, int device);
  /* Frees in the order of the stream that the memory was allocated on. */
  void (*cupy_free)(void *unused, void *pointer, int device);
  /* For handlers of device memory, as cuDSS and cuQuantum take them: 0 on success. */
  int (*handler_alloc)(void *unused, void **pointer, size_t bytes, void *stream);
  /* Frees in the order of this stream, which is of the memory's device. */
  int (*handler_free)(void *unused, void *pointer, size_t bytes, void *stream);

  /* Why the calling thread's last call failed. Valid until its next one that fails; never null. */
  const char *(*last_error)(void);

  /* Memory on a stream of the device, which is alive, of the pool that the calling thread's scope says. A null pointer
   * for 0 bytes, and where it fails. */
  int (*allocate)(uint64_t bytes, int device, void *stream, void **pointer);
  /* Frees a block, in the order of the stream that it was allocated on. A null pointer does nothing. */
  int (*deallocate)(void *pointer);
  /* Keeps a block, once freed, from use before the stream's work at that time is done. */
  int (*record_stream)(void *pointer, int device, void *stream);
  /* Whether an address lies in memory of gpupool's, 0 or 1; never fails. */
  int (*owns)(const void *pointer);
  /* The live block that starts at an address. The caller sets `size`. */
  int (*find_block)(const void *pointer, gpupool_block *block);
  /* Gives back to the driver what is free, of one device, or of all for -1; `bytes` may be null. */
  int (*empty_cache)(int device, uint64_t *bytes);
  /* The part of the device's memory that this process may reserve, 1 for all of it. */
  int (*get_memory_fraction)(int device, double *fraction);
  /* Sets it, from 0 to 1. What is reserved beyond stays, and no more is until it is less. */
  int (*set_memory_fraction)(int device, double fraction);
  /* The largest block that could be had without giving anything back, as far as is known: what is free of the default
   * pool, and what the driver has. */
  int (*largest_block)(int device, uint64_t *bytes);
  /* Lets the device read and write the memory of the peer, what there is and what comes. */
  int (*enable_peer_access)(int device, int peer);
  /* Asks this for memory before a request fails, whatever else was tried: returns whether any was freed. Called with no
   * lock held, on the requesting thread. */
  int (*add_oom_callback)(int (*callback)(void *context, int device, uint64_t bytes), void *context);
  /* Ends what add_oom_callback began with the same two. */
  int (*remove_oom_callback)(int (*callback)(void *context, int device, uint64_t bytes), void *context);

  /* Makes a pool with one use, which pool_release ends. `pool` becomes null where that fails. */
  int (*pool_create)(int device, const gpupool_pool_options *options, gpupool_pool **pool);
  /* Ends the use. The pool ends with its last one; blocks that are live stay. What was released is refused by every
   * call. */
  int (*pool_release)(gpupool_pool *pool);
  /* The id by which statistics, blocks and Python's MemPool.id name the pool. */
  int (*pool_id)(const gpupool_pool *pool, gpupool_pool_id *id);
  /* Whether what the pool has free serves other pools when memory is short, from now on. */
  int (*pool_set_use_on_oom)(gpupool_pool *pool, int use_on_oom);
  /* Refused once memory of the pool was cut into blocks. */
  int (*pool_set_no_split)(gpupool_pool *pool);
  /* Gives back to the driver what the pool has free and no graph uses; `bytes` may be null. */
  int (*pool_trim)(gpupool_pool *pool, uint64_t *bytes);
  /* A number larger than that of every scope entered before, on any thread. */
  uint64_t (*ticket)(void);
  /* As allocate, of this pool, unless the calling thread is in a scope of gpupool's that it entered after the ticket.
   * What a captured stream gets is a graph's, and serves nothing else until the pool is released. */
  int (*pool_allocate)(gpupool_pool *pool, uint64_t ticket, uint64_t bytes, void *stream, void **pointer);
  /* Notes which blocks are live, once those that were freed and waited for streams are free. What other streams were
   * recorded to do with blocks is waited for; refused while such a stream is captured. checkpoint_release ends it. */
  int (*pool_checkpoint)(gpupool_pool *pool, gpupool_checkpoint **checkpoint);
  /* Makes exactly those blocks live again, at the same addresses, of a pool made for graphs on which nothing else works
   * meanwhile: all others are freed. Waits and is refused as pool_checkpoint. `freed` is called for each block that was
   * live before, `allocated` for each that is after; either may be null. Nothing has changed where it fails. */
  int (*pool_restore)(gpupool_pool *pool, const gpupool_checkpoint *checkpoint, void *context,
                      void (*freed)(void *context, void *pointer),
                      void (*allocated)(void *context, void *pointer, uint64_t requested));
  /* Forgets a checkpoint; a null pointer does nothing. */
  void (*checkpoint_release)(gpupool_checkpoint *checkpoint);

  /* What the device's memory holds and has done. The caller sets `size`. */
  int (*device_stats)(int device, gpupool_device_stats *stats);
  /* Begins the peaks of device_stats anew, from what there is now. */
  int (*reset_peak_stats)(int device);
  /* The memory of a device, or of all for -1; of one pool if its id is given, with the events of all pools. Allocations
   * wait while it is taken, not while the visitor is called. */
  int (*snapshot)(int device, const gpupool_pool_id *pool, const gpupool_snapshot_visitor *visitor);
  /* Begins to record, with these settings from now on if something is recorded already, by gpupool's own calls too;
   * null ends it and forgets what was recorded. */
  int (*record)(const gpupool_recording *recording);
  /* Calls `visit` with the number of each stack that an event or a live block still names. */
  int (*visit_stacks)(void *context, void (*visit)(void *context, uint32_t stack));
  /* Calls the observer for every event from now on, with no lock of gpupool's held, on the thread that the event is of:
   * for memory that comes before anything uses it, for memory that goes before it is gone. null ends it, but for calls
   * under way on other threads. */
  int (*observe)(void (*observer)(void *context, const gpupool_event *event), void *context);

  /* Takes one more use of the pool with an id, which pool_release ends. */
  int (*pool_by_id)(int device, const gpupool_pool_id *id, gpupool_pool **pool);

  /* Says that a stream is never destroyed, so that gpupool may ask about it and record its work at any time. Others it
   * touches only in calls that name them. */
  int (*declare_lasting)(int device, void *stream);
  /* Until end_expecting_captures a stream of the device may be captured that gpupool was not told of, so that it records
   * no work of the whole device, which would spoil the capture. Calls count. */
  int (*expect_captures)(int device);
  /* Ends what one call of expect_captures began. */
  int (*end_expecting_captures)(int device);

  /* Pinned memory of the host, which the host and every device read and write at the same address: on the NUMA node with
   * this number, or for -1 on the one nearest to the thread's current device. A null pointer for 0 bytes, and where it
   * fails. `deallocate` frees it: it is used again once the work is done that the streams which it was recorded on had by
   * then, by `record_stream`; at once if it was recorded on none. Recorded on a captured stream, it is the graph's until
   * that is gone. `owns` says 1 of it, and `find_block` says -1 less the node's number as its device. */
  int (*allocate_pinned)(uint64_t bytes, int numa, void **pointer);
  /* Has so many bytes ready in one piece; with `background` a thread of gpupool's own makes them. */
  int (*warm_pinned)(uint64_t bytes, int numa, int background);
  /* Gives back the pinned memory that is free, on all nodes, which `empty_cache` does not; `bytes` may be null. What the
   * driver lets go only once running kernels have ended goes a little later, and is not among the bytes. */
  int (*empty_pinned_cache)(uint64_t *bytes);
  /* The most bytes that this process may have on all nodes together; UINT64_MAX for no limit. */
  int (*set_pinned_limit)(uint64_t bytes);
  /* Of a node, or of all for -1. The caller sets `size`. `device_allocs` and `device_frees` are of pieces that the driver
   * gave, whichever way they were made. */
  int (*pinned_stats)(int numa, gpupool_device_stats *stats);
  /* Begins the peaks of pinned_stats anew, from what there is now; of a node, or of all for -1. */
  int (*reset_peak_pinned_stats)(int numa);
  /* How long pieces of pinned memory took to come, and to go, on all nodes. The caller sets `size`; either may be null. */
  int (*pinned_times)(gpupool_durations *made, gpupool_durations *given_back);
  /* As snapshot, of pinned memory alone, which snapshot leaves out. Of devices it has -1 less the number of the node. */
  int (*pinned_snapshot)(const gpupool_snapshot_visitor *visitor);
  /* Puts a pool to sleep: its device memory goes back to the driver while its addresses stay, and what is live is copied to
   * pinned memory of the host, or given up, as the gpupool_backup says. Waits for all work on the device; refused while a
   * stream is captured, and for pools with a source of their own or no_split. Until it wakes, requests fail with
   * GPUPOOL_ERROR_ASLEEP, blocks may be freed, and no work may touch them. `bytes` are those that went, 0 for a pool that is
   * asleep already; it may be null. */
  int (*pool_sleep)(gpupool_pool *pool, int backup, uint64_t *bytes);
  /* Takes memory again at the same addresses, and copies back: then it may be used on any stream. Where there is not enough,
   * or the driver refuses a call, the pool is as asleep as before. `bytes` are those that were taken, 0 for a pool that is
   * awake; it may be null. */
  int (*pool_wake)(gpupool_pool *pool, uint64_t *bytes);
  /* Whether it sleeps, 0 or 1. */
  int (*pool_is_asleep)(const gpupool_pool *pool, int *is_asleep);
  /* As pool_sleep, of all memory of a device: its default pool and all others, those of graphs too. Pools that cannot sleep stay
   * awake, and idle handles are destroyed. */
  int (*sleep_device)(int device, int backup, uint64_t *bytes);
  /* As pool_wake, of all that sleeps on the device. */
  int (*wake_device)(int device, uint64_t *bytes);
  /* Calls `callback` for each segment of a pool with no_split or a source of its own, whose segments stay where they are:
   * with GPUPOOL_SEGMENT_ALLOC at once for those that are there, then for each before anything uses it, and with
   * GPUPOOL_SEGMENT_FREE before it goes, once the work of its streams is done. Of the event `stream` and `stack` are 0.
   * Called with no lock of gpupool's held, on the thread whose call brings the segment or gives it back, until the pool is
   * gone, or `pool_remove_segment_callback` with the same two ends it: then nothing more is told, but for calls under way
   * on other threads. Refused for other pools. */
  int (*pool_add_segment_callback)(gpupool_pool *pool, void (*callback)(void *context, const gpupool_event *event),
                                   void *context);
  /* Ends what pool_add_segment_callback began with the same two. */
  int (*pool_remove_segment_callback)(gpupool_pool *pool, void (*callback)(void *context, const gpupool_event *event),
                                      void *context);
  /* Shares the live block that a pointer lies in with other processes of the same user, after the work so far on the stream;
   * for device -1 after none: the caller has them wait for what they need.
   * `bytes` is how much room there is for the token, at least GPUPOOL_TOKEN_BYTES, and becomes its size; `offset` where the
   * pointer lies in the block. A block that is_sent is kept until its token was attached once, any other as long as it is not
   * freed. Freed while others have it attached, it is used again once all have let go or ended, and their work is done. */
  int (*share)(const void *pointer, int device, void *stream, int is_sent, void *token, uint64_t *bytes, uint64_t *offset);
  /* Takes up a block that another process shares: `pointer` is where it starts here, for the device of the stream, whose later
   * work comes after what was submitted before the block was shared; for device -1 the one that it is on, and gpupool's current
   * stream there. It stays until detach, also where its owner ends first. Null pointers where it fails. */
  int (*attach)(const void *token, uint64_t bytes, int device, void *stream, gpupool_attached **attached, void **pointer);
  /* Keeps attached memory, once it is given up, until the stream's work at that time is done. */
  int (*attached_record_stream)(const gpupool_attached *attached, int device, void *stream);
  /* Gives attached memory up, after the work so far on the stream and on the one that it was attached for; for device -1 on
   * that alone, which need not be alive. It stays mapped, for the next attach of what lies in the same memory, until its
   * owner gives that back to the driver, or empty_cache. */
  int (*detach)(gpupool_attached *attached, int device, void *stream);
  /* As deallocate, in the order of this stream of the device, which is alive: work that it has now is done before the block
   * is used again, by whichever stream. Pinned memory is used again once the stream's work so far is done. */
  int (*deallocate_on)(void *pointer, int device, void *stream);
  /* Sends what the calling thread allocates on the pool's device to the pool, until scope_leave. Scopes nest, and the
   * innermost counts. A scope that is never left ends with its thread. `scope` is 0 where it fails, and else never. */
  int (*pool_enter)(const gpupool_pool *pool, uint64_t *scope);
  /* Ends a scope, wherever it stands among the others, on the thread that entered it. */
  int (*scope_leave)(uint64_t scope);
  /* Waits for the work so far on a stream of the device, which is alive and not captured. */
  int (*synchronize)(int device, void *stream);
} gpupool_api;

/* Returns the table of libgpupool.so, or null if that gpupool does not know this version of it; pass
 * GPUPOOL_API_VERSION. Programs that take the table from Python's gpupool.c_api.capsule need neither this nor the
 * library. */
const gpupool_api *gpupool_get_api(uint64_t version);

#ifdef __cplusplus
}
#endif

#endif
