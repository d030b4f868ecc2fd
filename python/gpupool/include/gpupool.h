/* gpupool.h: gpupool's pools of libraries' handles, device memory and pinned host memory, for C and C++.
 *
 * All functions are in one table. gpupool_get_api, in the library libgpupool.so, returns it; in a Python process it is also
 * in gpupool.c_api.capsule. Functions are only added to the table: `version` is 2 for this header, and `size` is the size of
 * the table in the gpupool that runs, in bytes, so a program may use the functions within `size`.
 *
 * Every function may be called from any thread, and no exception or panic leaves one. Functions that return an int
 * return GPUPOOL_SUCCESS or another gpupool_status; after a failure, also of a function that returns none, `last_error`
 * says what failed, and what to do. Devices are ordinals as the runtime numbers them; a function that allows -1 says
 * what it means, and any other negative number is refused. Streams are cudaStream_t or hipStream_t. Null is the legacy
 * default stream, however the caller was compiled: code for per-thread default streams passes cudaStreamPerThread or
 * hipStreamPerThread, which are (void *)2, for its own stream; gpupool.hpp does so.
 *
 * Every callback must return: an exception that leaves one, or a longjmp out of it, ends the process or leaves gpupool as it
 * was in the middle of a call. gpupool_callbacks.hpp and gpupool.hpp take callbacks that throw.
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
  GPUPOOL_ERROR_OUT_OF_MEMORY = 1,  /* also if a limit is reached */
  GPUPOOL_ERROR_INVALID_VALUE = 2,  /* an argument is wrong: not a block of gpupool, an unknown device or pool */
  GPUPOOL_ERROR_DRIVER = 3,         /* the driver, or a library, refused a call */
  GPUPOOL_ERROR_FORKED = 4,         /* this process was forked from one that had used a GPU */
  GPUPOOL_ERROR_OTHER = 5,
  GPUPOOL_ERROR_ASLEEP = 6,         /* the pool is asleep: wake it first */
  GPUPOOL_ERROR_EXHAUSTED = 7,      /* all handles that a limit allows stayed in use for the whole timeout */
  GPUPOOL_ERROR_UNAVAILABLE = 8     /* a library or GPU platform is missing or unusable, or this pool, device or system cannot do it */
} gpupool_status;

/* The id of a pool: (0, n) for a private pool, (n, 0) for one made for graphs, (0, 0) for a device's default pool. */
typedef struct gpupool_pool_id {
  uint64_t first;
  uint64_t second;
} gpupool_pool_id;

/* A use of a pool, which keeps it alive. */
typedef struct gpupool_pool gpupool_pool;
/* Addresses of a pool whose pages are committed and decommitted. */
typedef struct gpupool_range gpupool_range;
typedef struct gpupool_claim gpupool_claim;
/* Which blocks of a pool were live at a moment. */
typedef struct gpupool_checkpoint gpupool_checkpoint;

/* A custom allocator for a pool's memory, in place of the driver. `allocate` returns null if there is no memory. The
 * functions are called while gpupool holds no lock, and must not throw or longjmp. `release` is called once: when the pool
 * has ended and all its memory was freed, or before pool_create returns if that fails. */
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
  int use_on_oom;               /* its free memory serves other pools when memory is short */
  int no_split;                 /* each segment serves one block at a time, and is not moved until pool_trim */
  const char *name;             /* its name in statistics and errors, in addition to its id, or null; copied */
  const gpupool_source *source; /* or null; copied */
  int sleeps_for_others;        /* the user's other processes may put it to sleep for want of memory, unless a thread has a scope of it */
  int wakes_on_use;             /* its next request, scope, copy or commit wakes it then, not only pool_wake */
} gpupool_pool_options;

/* A block, and the contiguous memory that it is a part of. */
typedef struct gpupool_block {
  uint64_t size; /* of this struct */
  void *address;
  uint64_t bytes;     /* after rounding */
  uint64_t requested; /* 0 if it is free */
  int is_live;        /* a caller holds it */
  int is_waiting;     /* it was freed and waits for streams */
  int device; /* for pinned memory -1 minus the number of its NUMA node */
  void *stream;
  gpupool_pool_id pool;
  void *segment;
  uint64_t segment_bytes;
  uint32_t stack; /* of its allocation, if that was recorded; else 0 */
} gpupool_block;

/* Contiguous memory of one pool and one stream. */
typedef struct gpupool_segment {
  uint64_t size; /* of this struct */
  int device;
  void *address;
  uint64_t bytes;
  void *stream;
  gpupool_pool_id pool;
  int is_movable; /* it consists of pages that can be moved; else it is one allocation of the driver or the pool's source */
  int is_small;   /* all its blocks are small, of at most 64 KiB; a segment in movable pages has only small blocks or none */
  uint32_t stack; /* of the request for which it was added, if that was recorded; else 0 */
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
  GPUPOOL_OOM = 8 /* `address` is the number of bytes that the driver still had */
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

/* The functions that snapshot calls, in this order: for each segment with its blocks by address, then for events from the
 * first to the last. They must not throw or longjmp. */
typedef struct gpupool_snapshot_visitor {
  uint64_t size; /* of this struct */
  void *context;
  void (*segment)(void *context, const gpupool_segment *segment);
  void (*block)(void *context, const gpupool_block *block);
  void (*event)(void *context, const gpupool_event *event); /* or null: no events */
} gpupool_snapshot_visitor;

/* What to record. `take_stack` returns the number of a stack: 0 for none, else a number whose highest bit is set; other
 * numbers are for Python's stacks, which are 0 here. It is called while gpupool holds no lock, and must not throw or
 * longjmp. */
typedef struct gpupool_recording {
  uint64_t size; /* of this struct */
  uint64_t most_events;           /* the newest are kept; 0 for no events, but stacks of live blocks */
  int live_stacks;                /* the stack of each live block */
  int alloc_stacks;               /* of each allocation among the events */
  int free_stacks;                /* of each free among them */
  uint32_t skipped_actions;       /* a bit, 1 << action, for each action to leave out */
  uint32_t (*take_stack)(int is_free); /* `is_free` is 1 for a free, else 0; or null: no stacks */
  int forget;                     /* discard earlier events */
} gpupool_recording;

/* Like a value of torch.cuda.memory_stats. `allocated` and `freed` are sums since the process began. */
typedef struct gpupool_stat {
  int64_t current;
  int64_t peak;
  int64_t allocated;
  int64_t freed;
} gpupool_stat;

/* Of all blocks; of small ones, of at most 64 KiB, where memory is divided into blocks; of larger ones. */
enum { GPUPOOL_ALL = 0, GPUPOOL_SMALL = 1, GPUPOOL_LARGE = 2 };

/* Statistics of a device, for all pools together. Peaks are exact on one stream. On several they are upper bounds, never more
 * than what was reserved: those of all bytes are at most a MiB too high for each stream, unless threads allocate on
 * several streams at the same time. Peaks of inactive_split are only of the moments of device_stats. Small blocks
 * reserve pieces of 64 KiB and more within pages, which turn into memory for large blocks and back. A piece of at most
 * 2 MiB counts as small in `segment`, whatever it contains. */
typedef struct gpupool_device_stats {
  uint64_t size; /* of this struct */
  gpupool_stat allocation[3];         /* live blocks */
  gpupool_stat segment[3];            /* pieces of memory that the driver allocated */
  gpupool_stat active[3];             /* blocks that are live, or freed and waiting for streams */
  gpupool_stat inactive_split[3];     /* free blocks next to live ones */
  gpupool_stat allocated_bytes[3];
  gpupool_stat reserved_bytes[3];
  gpupool_stat active_bytes[3];
  gpupool_stat inactive_split_bytes[3];
  gpupool_stat requested_bytes[3];
  int64_t alloc_retries; /* requests that were retried after memory was released to the driver */
  int64_t ooms;          /* requests that failed because there was not enough memory */
  int64_t device_allocs; /* calls of the driver that allocated memory */
  int64_t device_frees;  /* calls of the driver that released memory */
} gpupool_device_stats;

/* How long successful calls of one kind took, in microseconds. */
typedef struct gpupool_durations {
  uint64_t size; /* of this struct */
  int64_t total;
  int64_t max; /* since peaks were reset; 0 for none */
  int64_t min; /* the same */
  int64_t count;
} gpupool_durations;

/* The size of a buffer for the token of a shared block. */
enum { GPUPOOL_TOKEN_BYTES = 128 };
/* Memory of another process. */
typedef struct gpupool_attached gpupool_attached;

/* What happens to the content of a pool when it is put to sleep. */
typedef enum gpupool_backup {
  GPUPOOL_BACKUP_NONE = 0, /* it is discarded */
  GPUPOOL_BACKUP_HOST = 1  /* it is copied to pinned host memory, and back when the pool wakes */
} gpupool_backup;

/* A library whose handles gpupool pools, and the type of its handles. */
typedef enum gpupool_library {
  GPUPOOL_CUDNN = 0,        /* cudnnHandle_t */
  GPUPOOL_CUSPARSE = 1,     /* cusparseHandle_t */
  GPUPOOL_CUDSS = 2,        /* cudssHandle_t */
  GPUPOOL_CUBLAS = 3,       /* cublasHandle_t */
  GPUPOOL_CUBLASLT = 4,     /* cublasLtHandle_t, which has no stream: each call takes one */
  GPUPOOL_CUSOLVER = 5,     /* cusolverDnHandle_t */
  GPUPOOL_MIOPEN = 6,       /* miopenHandle_t */
  GPUPOOL_SIMULATED = 7,    /* the simulated library, where devices are simulated */
  GPUPOOL_HIPBLAS = 8,      /* hipblasHandle_t */
  GPUPOOL_HIPBLASLT = 9,    /* hipblasLtHandle_t, which has no stream: each call takes one */
  GPUPOOL_HIPSOLVER = 10,   /* hipsolverHandle_t */
  GPUPOOL_HIPSPARSE = 11,   /* hipsparseHandle_t */
  GPUPOOL_CUSTATEVEC = 12,  /* custatevecHandle_t */
  GPUPOOL_CUTENSORNET = 13, /* cutensornetHandle_t, which has no stream: each call takes one */
  GPUPOOL_CUTENSOR = 14,    /* cutensorHandle_t, which has no stream: each call takes one */
  GPUPOOL_CUSPARSELT = 15   /* cusparseLtHandle_t *, which has no stream: each call takes one */
} gpupool_library;

/* A handle that only its holder uses until the lease ends. `lease` fills it; the caller reads only `handle`, may move
 * the struct, and uses one copy of it. */
typedef struct gpupool_lease {
  void *handle; /* null once the lease has ended */
  void *pooled; /* this and the rest are gpupool's */
  int library;
  int device;
} gpupool_lease;

/* The counts of a library's handles, since the process began. For several devices peaks are sums. */
typedef struct gpupool_handle_stats {
  uint64_t size; /* of this struct */
  uint64_t created;
  uint64_t destroyed;
  uint64_t discarded;   /* by their holders, and destroyed by the next trim_handles */
  uint64_t idle;        /* no thread or lease holds them */
  uint64_t held;        /* by threads */
  uint64_t leased;
  uint64_t peak_in_use; /* the most handles in use at the same time, by threads and leases; never too low */
  uint64_t hits;        /* requests served by the thread's own handle, or the one that it gave back last */
  uint64_t misses;      /* requests that went to the pool */
  uint64_t hand_overs;  /* misses served by a handle that was idle */
  uint64_t waits;       /* requests that waited, since there was a limit */
  uint64_t failures;    /* requests and creations that failed */
  uint64_t create_time;       /* time spent creating handles, in microseconds, summed over threads */
  uint64_t device_bytes;      /* device memory that the handles took when they were created */
  uint64_t peak_device_bytes;
  uint64_t workspace_bytes;   /* device memory that gpupool gave to handles, and to graphs, as workspaces */
} gpupool_handle_stats;

typedef struct gpupool_api {
  uint64_t version;
  uint64_t size;

  /* For PyTorch's pluggable allocators. Returns null if there is no memory, and for 0 bytes. Device -1 is the device
   * that the stream belongs to, also in `free` and `attached_record_stream`. */
  void *(*malloc)(ptrdiff_t bytes, int device, void *stream);
  /* Frees in the order of this stream, which may differ from that of the allocation; does nothing if it cannot free. */
  void (*free)(void *pointer, ptrdiff_t bytes, int device, void *stream);
  /* For cupy.cuda.CFunctionAllocator, on gpupool's current stream. */
  void *(*cupy_malloc)(void *unused, size_t bytes, int device);
  /* Frees in the order of the stream that the memory was allocated on. */
  void (*cupy_free)(void *unused, void *pointer, int device);
  /* For device memory handlers of cuDSS and cuQuantum: 0 on success. */
  int (*handler_alloc)(void *unused, void **pointer, size_t bytes, void *stream);
  /* Frees in the order of this stream, which is of the memory's device. */
  int (*handler_free)(void *unused, void *pointer, size_t bytes, void *stream);

  /* Why the calling thread's last failed call failed. Valid until its next failed call; never null. */
  const char *(*last_error)(void);

  /* Allocates memory on an existing stream of the device, from the pool of the calling thread's scope. The pointer is null
   * for 0 bytes, and on failure. */
  int (*allocate)(uint64_t bytes, int device, void *stream, void **pointer);
  /* Frees a block, in the order of the stream that it was allocated on. Does nothing for a null pointer. A pointer that
   * is not the start of a block in use is an invalid value, also in a second free, and so is one to a block of
   * gpupool's own work. But a second free of a block that other code has allocated since takes it from that code. */
  int (*deallocate)(void *pointer);
  /* Makes sure that a block, once freed, is not reused before the stream's work at that time is done. */
  int (*record_stream)(void *pointer, int device, void *stream);
  /* Whether an address is in gpupool's memory, 0 or 1; never fails. */
  int (*owns)(const void *pointer);
  /* The live block that starts at an address. The caller sets `size`. */
  int (*find_block)(const void *pointer, gpupool_block *block);
  /* Releases free memory to the driver, of one device, or of all for -1, and waits for the GPU work that may still use it, as
   * cudaFree does; `bytes` may be null. */
  int (*empty_cache)(int device, uint64_t *bytes);
  /* The fraction of the device's memory that this process may reserve, 1 for all of it. */
  int (*get_per_process_memory_fraction)(int device, double *fraction);
  /* Sets this fraction, from 0 to 1. Memory above it is kept, but no more is reserved meanwhile. */
  int (*set_per_process_memory_fraction)(int device, double fraction);
  /* The largest block that could be allocated without releasing anything, as far as is known: free memory of the default
   * pool, and of the driver. */
  int (*largest_block)(int device, uint64_t *bytes);
  /* Lets the device read and write the memory of the peer, existing and later. */
  int (*enable_peer_access)(int device, int peer);
  /* Registers a callback that is called before a request fails, after everything else was tried; it returns whether it freed
   * memory. It is called with no lock held, on the requesting thread, and must not throw or longjmp. */
  int (*on_oom)(int (*callback)(void *context, int device, uint64_t bytes), void *context);
  /* Removes a callback that was added with the same two arguments. */
  int (*remove_oom_callback)(int (*callback)(void *context, int device, uint64_t bytes), void *context);

  /* Creates a pool with one use, which pool_release ends. `pool` becomes null on failure. */
  int (*pool_create)(int device, const gpupool_pool_options *options, gpupool_pool **pool);
  /* Ends the use. The pool ends with its last use; live blocks stay valid. After that every call refuses the pointer. */
  int (*pool_release)(gpupool_pool *pool);
  /* The pool's id, as in statistics, blocks and Python's MemPool.id. */
  int (*pool_id)(const gpupool_pool *pool, gpupool_pool_id *id);
  /* Sets whether the pool's free memory serves other pools when memory is short. */
  int (*pool_set_use_on_oom)(gpupool_pool *pool, int use_on_oom);
  /* Sets no_split. Refused once the pool has split memory into blocks. */
  int (*pool_set_no_split)(gpupool_pool *pool);
  /* Releases the pool's free memory that no graph uses to the driver, and waits for the GPU work that may still use it;
   * `bytes` may be null. */
  int (*pool_trim)(gpupool_pool *pool, uint64_t *bytes);
  /* A number larger than that of every scope entered before, on any thread. */
  uint64_t (*ticket)(void);
  /* Like allocate, from this pool, unless the calling thread is in a gpupool scope that it entered after the ticket.
   * Memory allocated on a captured stream belongs to the graph, and is not used otherwise until the pool is released. */
  int (*pool_allocate)(gpupool_pool *pool, uint64_t ticket, uint64_t bytes, void *stream, void **pointer);
  /* Records which blocks are live, after blocks that were freed and waited for streams are free. Waits for the recorded
   * work of other streams; refused while such a stream is captured. checkpoint_release frees the checkpoint. */
  int (*pool_checkpoint)(gpupool_pool *pool, gpupool_checkpoint **checkpoint);
  /* Makes exactly the checkpoint's blocks live again, at the same addresses, and frees all others. The pool must be one
   * made for graphs, which nothing else uses meanwhile. Waits and is refused like pool_checkpoint. `freed` is called
   * for each block that was live before, `allocated` for each that is live after; either may be null, and neither may
   * throw or longjmp. On failure nothing has changed. */
  int (*pool_restore)(gpupool_pool *pool, const gpupool_checkpoint *checkpoint, void *context,
                      void (*freed)(void *context, void *pointer),
                      void (*allocated)(void *context, void *pointer, uint64_t requested));
  /* Frees a checkpoint; does nothing for a null pointer. */
  void (*checkpoint_release)(gpupool_checkpoint *checkpoint);

  /* The statistics of the device's memory. The caller sets `size`. */
  int (*device_stats)(int device, gpupool_device_stats *stats);
  /* Resets the peaks of device_stats to the current values. */
  int (*reset_peak_stats)(int device);
  /* The memory of a device, or of all for -1; of one pool if its id is given, with the events of all pools. Allocations
   * are blocked while it is taken, but not while the visitor is called. */
  int (*snapshot)(int device, const gpupool_pool_id *pool, const gpupool_snapshot_visitor *visitor);
  /* Starts a recording, or changes the settings of one that was started before, also by gpupool's other interfaces.
   * Null ends it and discards its events; live blocks keep their stacks until they are freed, or another interface ends
   * a recording. */
  int (*record)(const gpupool_recording *recording);
  /* Calls `visit`, which must not throw or longjmp, with the number of each stack that an event or a live block still refers
   * to. */
  int (*visit_stacks)(void *context, void (*visit)(void *context, uint32_t stack));
  /* Calls the observer for every event from now on, while gpupool holds no lock, on the thread of the event: before
   * added memory is used, and before memory is released. Null removes the observer, except for running calls on other
   * threads. It must not throw or longjmp. */
  int (*observe)(void (*observer)(void *context, const gpupool_event *event), void *context);

  /* Adds a use of the pool with this id, which pool_release ends. */
  int (*pool_by_id)(int device, const gpupool_pool_id *id, gpupool_pool **pool);

  /* Declares that a stream is never destroyed, so that gpupool may query it and record events on it at any time.
   * It uses other streams only in calls that name them. A per-thread default stream is refused: each thread has its
   * own. */
  int (*declare_lasting)(int device, void *stream);
  /* Until end_expecting_captures a stream of the device may be captured without gpupool's knowledge, so gpupool records
   * no events for the whole device, which would invalidate the capture. Calls are counted. This waits for calls for the
   * whole device that are in progress, and is refused in a callback of one. */
  int (*expect_captures)(int device);
  /* Ends the effect of one call of expect_captures. */
  int (*end_expecting_captures)(int device);

  /* Allocates pinned host memory, which the host and every device can read and write at the same address: on the NUMA node
   * with this number, or for -1 on the one nearest to the thread's current device. The pointer is null for 0 bytes, and on
   * failure. `deallocate` frees the memory: it is reused once the work submitted by then to the streams passed to
   * `record_stream` is done, immediately if there are none. If it is recorded on a captured stream, it belongs to the
   * graph until the graph is destroyed. `owns` returns 1 for it, and `find_block` returns -1 minus the node's number as
   * its device. */
  int (*allocate_pinned)(uint64_t bytes, int numa, void **pointer);
  /* Allocates this many bytes in advance, in one piece; with `background` on a thread of gpupool. */
  int (*warm_pinned)(uint64_t bytes, int numa, int background);
  /* Releases free pinned memory, on all nodes, which `empty_cache` does not; `bytes` may be null. Memory that the driver
   * releases only once running kernels have ended is released a little later, and not counted in the bytes. */
  int (*empty_pinned_cache)(uint64_t *bytes);
  /* Limits the bytes that this process reserves on all nodes together; UINT64_MAX for no limit. */
  int (*set_pinned_limit)(uint64_t bytes);
  /* The statistics of a node, or of all for -1. The caller sets `size`. `device_allocs` and `device_frees` count pieces that
   * the driver allocated in any way. */
  int (*pinned_stats)(int numa, gpupool_device_stats *stats);
  /* Resets the peaks of pinned_stats to the current values; of a node, or of all for -1. */
  int (*reset_peak_pinned_stats)(int numa);
  /* How long it took to allocate and to release pieces of pinned memory, on all nodes. The caller sets `size`; either may be
   * null. */
  int (*pinned_times)(gpupool_durations *made, gpupool_durations *given_back);
  /* Like snapshot, for pinned memory only, which snapshot leaves out. Devices are -1 minus the number of the node. */
  int (*pinned_snapshot)(const gpupool_snapshot_visitor *visitor);
  /* Puts a pool to sleep: its device memory is released to the driver while its addresses are kept, and live blocks are
   * copied to pinned host memory, or discarded, depending on the gpupool_backup. Waits for all work on the device; refused
   * while a stream is captured, for pools with a source or no_split, and while other processes, or other pools that had
   * no memory, use blocks of the pool. Until it wakes, requests fail with GPUPOOL_ERROR_ASLEEP, blocks may be freed,
   * and no work may access them. `bytes` gets the released bytes, 0 for a pool that is asleep already; it may be
   * null. */
  int (*pool_sleep)(gpupool_pool *pool, int backup, uint64_t *bytes);
  /* Allocates memory again at the same addresses, and copies the content back; then it may be used on any stream. If
   * there is not enough, or the driver refuses a call, the pool stays asleep. `bytes` gets the allocated bytes, 0 for a
   * pool that is awake; it may be null. */
  int (*pool_wake)(gpupool_pool *pool, uint64_t *bytes);
  /* Whether the pool is asleep, 0 or 1. */
  int (*pool_is_asleep)(const gpupool_pool *pool, int *is_asleep);
  /* Like pool_sleep, for all memory of a device: its default pool and all others, including those of graphs. Pools that cannot
   * sleep stay awake, blocks that other pools use do not prevent it, and idle handles are destroyed. */
  int (*sleep_device)(int device, int backup, uint64_t *bytes);
  /* Like pool_wake, for everything that sleeps on the device. */
  int (*wake_device)(int device, uint64_t *bytes);
  /* Calls `callback` for each segment of a pool with no_split or a source, whose segments are not moved: with
   * GPUPOOL_SEGMENT_ALLOC immediately for existing segments, then for each new one before it is used, and with
   * GPUPOOL_SEGMENT_FREE before it is released, once the work of its streams is done. Freeing a block does not wait for
   * that: if the pool is closed, the block's segment is released when memory is next given back. The event's `stream`
   * and `stack` are 0. `callback` is called while gpupool holds no lock, on the thread whose call adds or releases the
   * segment, until the pool ends, or until `pool_remove_segment_callback` with the same two arguments: then it is not
   * called again, except for running calls on other threads. It must not throw or longjmp. Refused for other pools. */
  int (*pool_on_segment)(gpupool_pool *pool, void (*callback)(void *context, const gpupool_event *event),
                                   void *context);
  /* Removes a callback that was added with the same two arguments. */
  int (*pool_remove_segment_callback)(gpupool_pool *pool, void (*callback)(void *context, const gpupool_event *event),
                                      void *context);
  /* Shares the live block that contains a pointer with other processes of the same user, which wait for the work so far
   * on the stream; with device -1 for nothing: the caller must make them wait. `bytes` is the size of the buffer for
   * the token, at least GPUPOOL_TOKEN_BYTES, and becomes the token's size; `offset` is the pointer's offset in the
   * block. With `is_sent` the block is kept until its token was attached once, else only until it is freed. If it is
   * freed while others have it attached, it is reused once all have detached it or ended, and their work is done. */
  int (*share)(const void *pointer, int device, void *stream, int is_sent, void *token, uint64_t *bytes, uint64_t *offset);
  /* Attaches a block that another process shares: `pointer` gets its start in this process, for the stream's device.
   * Later work of the stream waits for what was submitted before the block was shared. Device -1 is the device that the
   * block is on, with gpupool's current stream there. The block stays valid until detach, even if its owner ends first.
   * Null pointers on failure. */
  int (*attach)(const void *token, uint64_t bytes, int device, void *stream, gpupool_attached **attached, void **pointer);
  /* Makes sure that attached memory, once detached, is not reused before the stream's work at that time is done. */
  int (*attached_record_stream)(const gpupool_attached *attached, int device, void *stream);
  /* Detaches memory, after the work so far on the stream and on the one that it was attached for; with device -1 only
   * on the latter, which need not exist any more. The memory stays mapped, to make its next attach fast, until its
   * owner releases it to the driver, or until empty_cache. */
  int (*detach)(gpupool_attached *attached, int device, void *stream);
  /* Like deallocate, in the order of this existing stream of the device: its current work is done before the block is reused
   * on any stream. Pinned memory is reused once the stream's work so far is done. */
  int (*deallocate_on)(void *pointer, int device, void *stream);
  /* Lets the calling thread allocate from the pool, on the pool's device, until scope_leave. Scopes nest, and the innermost
   * applies. A scope that is never left ends with its thread. `scope` is 0 only on failure. */
  int (*pool_enter)(const gpupool_pool *pool, uint64_t *scope);
  /* Ends a scope, also if it is not the innermost, on the thread that entered it. */
  int (*scope_leave)(uint64_t scope);
  /* Waits for the work so far on a stream of the device, which must exist and not be captured; the legacy default
   * stream is refused while a blocking stream of the device is captured, since waiting would invalidate the capture. */
  int (*synchronize)(int device, void *stream);
  /* Allocates bytes at an address of free memory that this stream, or a graph, has used, from the pool that has the
   * memory. Refused (GPUPOOL_ERROR_INVALID_VALUE) if the bytes are not free there in one piece, as when pages have
   * moved or gone back to the driver; those of a graph's pool do neither while the graph exists. */
  int (*allocate_at)(void *address, uint64_t bytes, int device, void *stream);

  /* Returns the calling thread's handle of a gpupool_library on the device, with this stream of the device set. Device
   * -1 is the stream's, for which the driver is asked. The thread keeps the handle, and gets the same one for each
   * request, until it ends: then the handle returns to the pool. For cuStateVec, cuTensorNet and ROCm's libraries except
   * MIOpen a thread has one handle for each of up to eight of its streams. Call this each time before the handle is
   * used; inside a capture, not before it. Do not destroy the handle, and do not use it on another thread. `handle`
   * gets null on failure. */
  int (*handle)(int library, int device, void *stream, void **handle);
  /* Leases a handle, which only the holder uses until lease_release, on any thread; library, device and stream are as
   * for `handle`. With a limit it waits at most `timeout_ms` for a handle; UINT64_MAX means no end, which is refused in
   * a callback. The struct is overwritten, and all zero on failure. */
  int (*lease)(int library, int device, void *stream, uint64_t timeout_ms, gpupool_lease *lease);
  /* Ends a lease, on any thread: its handle returns to the pool, and the struct becomes all zero. A struct that is all
   * zero is refused. */
  int (*lease_release)(gpupool_lease *lease);
  /* Ends a lease whose handle was changed in a way that the pool cannot reset: no request gets the handle again, and
   * trim_handles destroys it. */
  int (*lease_discard)(gpupool_lease *lease);
  /* Whether handles of a library can be requested, 0 or 1: it is found, and the GPU platform in use is its own. This
   * loads the library. */
  int (*library_is_available)(int library, int *is_available);
  /* The counts of a library's handles on a device, or summed over all for -1. The caller sets `size`. */
  int (*handle_stats)(int library, int device, gpupool_handle_stats *stats);
  /* Resets the peaks of handle_stats to the current values, on a device, or on all for -1. */
  int (*reset_peak_handle_stats)(int library, int device);
  /* Creates handles until `handles` are idle on the device, or as many as a limit allows; with `background` on a thread
   * of gpupool, whose failure handle_stats counts. `created` is how many this call created, 0 in the background; it may
   * be null. */
  int (*warm_handles)(int library, int device, uint64_t handles, int background, uint64_t *created);
  /* Destroys the idle handles of a device, or of all for -1, with their workspaces. Handles whose end waits for the
   * device are kept while gpupool knows of a capture. `destroyed` may be null. */
  int (*trim_handles)(int library, int device, uint64_t *destroyed);
  /* Limits the handles on each device, at least 1; UINT64_MAX for no limit. Requests beyond it wait until a lease or a
   * thread ends, in `handle` for 30 seconds. Handles beyond a new limit are kept. */
  int (*set_handle_limit)(int library, uint64_t handles);

  /* Reserves addresses for memory that is committed and decommitted page by page, and takes no memory: `bytes` is a
   * multiple of `page_bytes`, and `page_bytes` of 2 MiB. `pointer` is the first address. No page may be accessed before
   * it is committed. The range is a use of the pool. Refused for pools with a source or no_split. Null pointers on
   * failure. */
  int (*pool_reserve_range)(const gpupool_pool *pool, uint64_t bytes, uint64_t page_bytes, gpupool_range **range,
                            void **pointer);
  /* Gives physical memory to those of `count` pages, by their numbers, that have none, for later work of the stream;
   * device -1 is the stream's device, for which the driver is asked. With a `priority`, which may be null, all these
   * pages may be taken when memory is short, those with the lowest number first, unless they are pinned. `fill` is a
   * byte for the pages that were not committed, or -1. On failure nothing is committed. Refused while a stream of the
   * pool is captured. */
  int (*range_commit)(const gpupool_range *range, const uint32_t *pages, uint64_t count, int device, void *stream,
                      const int *priority, int fill);
  /* Takes the memory of pages away, once the work so far is done on this stream and on those that they were committed
   * and pinned for; with device -1 only on the latter. Nothing waits. Refused, with no change, if a page is pinned. */
  int (*range_decommit)(const gpupool_range *range, const uint32_t *pages, uint64_t count, int device, void *stream);
  /* Keeps those of the pages that are committed from being taken, until range_unpin, for work of the stream; with
   * device -1 for no stream. `bits` gets a bit for each page, in this order, the lowest bit of a byte first: whether
   * the page is committed, and so pinned. */
  int (*range_pin)(const gpupool_range *range, const uint32_t *pages, uint64_t count, int device, void *stream, void *bits);
  /* Ends one pin of each page, which may be taken once the work so far on the stream is done, too; device -1 names no
   * stream. Refused, with no change, if a page has no pin. */
  int (*range_unpin)(const gpupool_range *range, const uint32_t *pages, uint64_t count, int device, void *stream);
  /* Keeps physical memory for this many pages ready, at most those of the range: a thread of gpupool makes it, so that
   * a commit only maps it. 0 ends this. */
  int (*range_prepare)(const gpupool_range *range, uint64_t pages);
  /* The bytes of committed pages, and of those that may be taken now; either may be null. */
  int (*range_bytes)(const gpupool_range *range, uint64_t *committed, uint64_t *discardable);
  /* Calls `callback` with the numbers of pages that were taken, on the thread of the request that lacked memory, while
   * gpupool holds no lock, until range_release, which waits for running calls on other threads, or range_drop. The
   * range's next call reports pages that another process got; a range_commit that finds one taken does so before it returns.
   * `callback` must not throw or longjmp. In it, as in any callback, a call that would have to wait for another
   * thread's call, which may be waiting for this one, is refused with GPUPOOL_ERROR_INVALID_VALUE. */
  int (*range_on_discard)(const gpupool_range *range,
                          void (*callback)(void *context, const uint32_t *pages, uint64_t count), void *context);
  /* Frees a range, once the work so far is done on the streams that used it, and on this one; with device -1 only on
   * the former. Refused, and the range stays, while a page is pinned, and in a callback while another thread is in a
   * callback of the range. */
  int (*range_release)(gpupool_range *range, int device, void *stream);
  /* The same for an owner that itself ends, and cannot keep the range: also with pins, and anywhere. In a callback in
   * which range_release would be refused, running calls of the range's callbacks on other threads go on, with their
   * contexts. Not in a callback of a call with this range. */
  int (*range_drop)(gpupool_range *range);

  /* Makes this process a neighbour of the user's other processes that use gpupool on the same devices: a neighbour that
   * finds no memory asks the others for what they can do without before its request fails. They learn this process's
   * `name` (null: the one before, or the program's), and for this device `guarantee`, the bytes that it is never asked
   * to go below, `most`, those beyond which it is asked first and gives back unasked (UINT64_MAX: no such bound), and
   * its `priority`: those with the lowest are asked first. */
  int (*set_neighbour)(int device, const char *name, uint64_t guarantee, uint64_t most, int priority);
  /* The bytes of a device that this process could have: what is free, and what its neighbours would give back, less
   * what they have claimed. The process need not be a neighbour itself. */
  int (*available_memory)(int device, uint64_t *bytes);
  /* Claims memory before it is taken, beyond what this process has: its neighbours count it in available_memory and in
   * claims of their own. Memory that this process keeps more from then on uses the claim up. The process becomes a
   * neighbour. Waits at most `timeout_ms` until so much is available, behind those that claimed before; UINT64_MAX
   * means no end, which is refused in a callback. Null on failure. */
  int (*claim)(int device, uint64_t bytes, uint64_t timeout_ms, gpupool_claim **claim);
  /* Ends a claim. */
  int (*claim_release)(gpupool_claim *claim);

  /* For code that names no stream: allocates memory that no work uses, as cudaMalloc does, so that it may be used on any
   * stream immediately; from a pool of the device, or with null from the device's default pool, regardless of scopes.
   * It does not call the callbacks of on_oom. The pointer is null for 0 bytes, and on failure. */
  int (*feed_allocate)(const gpupool_pool *pool, int device, uint64_t bytes, void **pointer);
  /* Frees any block, as cudaFree does, but does not wait: the block is reused once all work so far on the device is
   * done, on any stream. */
  int (*feed_deallocate)(void *pointer);
} gpupool_api;

/* Returns the table of libgpupool.so, or null if that gpupool does not know this version of it; pass
 * GPUPOOL_API_VERSION. Programs that take the table from Python's gpupool.c_api.capsule need neither this nor the
 * library. */
const gpupool_api *gpupool_get_api(uint64_t version);

#ifdef __cplusplus
}
#endif

#endif
