//! The C interface has the layout that the header says: a C compiler compares the two.

use std::io::Write;
use std::mem::offset_of;
use std::process::{Command, Stdio};

use gpupool::PoolId;
use gpupool::c_api::{
    Api, Block, C_API, DeviceStats, Durations, Event, HandleCounts, HandleLease, PoolOptions, PoolSource, Recording,
    Segment, SnapshotVisitor, Stat,
};
use gpupool::{
    Cublas, CublasLt, Cudnn, Cudss, Cusolver, Cusparse, Hipblas, HipblasLt, Hipsolver, Hipsparse, HostHandles, Miopen,
    Pooled,
};

/// Adds C that fails to compile unless the struct has these fields at these places, and ends with the last.
macro_rules! layout {
    ($text:ident, $of:ty, $name:literal, $($field:ident)*) => {
        let size = size_of::<$of>();
        $text += &format!("_Static_assert(sizeof({}) == {size}, \"size of {}\");\n", $name, $name);
        $(
            let (field, offset) = (stringify!($field), offset_of!($of, $field));
            $text += &format!("_Static_assert(offsetof({}, {field}) == {offset}, \"{field} of {}\");\n", $name, $name);
        )*
    };
}

fn compile(text: &str) -> (bool, String) {
    let include = concat!(env!("CARGO_MANIFEST_DIR"), "/python/gpupool/include");
    let mut compiler = Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "-I", include, "-x", "c", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    compiler.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let ended = compiler.wait_with_output().unwrap();
    (ended.status.success(), String::from_utf8_lossy(&ended.stderr).into_owned())
}

#[test]
fn the_structs_are_those_of_the_header() {
    let mut text = "#include <gpupool.h>\n".to_owned();
    layout!(text, PoolId, "gpupool_pool_id",);
    layout!(text, PoolSource, "gpupool_source", context allocate free release);
    layout!(text, PoolOptions, "gpupool_pool_options", size for_graphs use_on_oom no_split name source);
    layout!(text, Block, "gpupool_block", size address bytes requested is_live is_waiting device stream pool segment
        segment_bytes stack);
    layout!(text, Segment, "gpupool_segment", size device address bytes stream pool is_movable is_small stack);
    layout!(text, Event, "gpupool_event", size action device address bytes stream pool unix_micros stack);
    layout!(text, SnapshotVisitor, "gpupool_snapshot_visitor", size context segment block event);
    layout!(text, Recording, "gpupool_recording", size most_events live_stacks alloc_stacks free_stacks skipped_actions
        take_stack forget);
    layout!(text, Stat, "gpupool_stat", current peak allocated freed);
    layout!(text, DeviceStats, "gpupool_device_stats", size allocation segment active inactive_split allocated_bytes
        reserved_bytes active_bytes inactive_split_bytes requested_bytes alloc_retries ooms device_allocs device_frees);
    layout!(text, Durations, "gpupool_durations", size total max min count);
    layout!(text, HandleLease, "gpupool_lease", handle pooled library device);
    layout!(text, HandleCounts, "gpupool_handle_stats", size created destroyed retired idle held leased peak_in_use hits
        misses hand_overs waits failures create_micros device_bytes peak_device_bytes workspace_bytes);
    layout!(text, Api, "gpupool_api", version size malloc free cupy_malloc cupy_free handler_alloc handler_free
        last_error allocate deallocate record_stream owns find_block empty_cache get_memory_fraction
        set_memory_fraction largest_block enable_peer_access add_oom_callback remove_oom_callback pool_create
        pool_release pool_id pool_set_use_on_oom pool_set_no_split pool_trim ticket pool_allocate pool_checkpoint
        pool_restore checkpoint_release device_stats reset_peak_stats snapshot record visit_stacks observe pool_by_id
        declare_lasting expect_captures end_expecting_captures allocate_pinned warm_pinned empty_pinned_cache
        set_pinned_limit pinned_stats reset_peak_pinned_stats pinned_times
        pinned_snapshot pool_sleep pool_wake pool_is_asleep sleep_device wake_device pool_add_segment_callback
        pool_remove_segment_callback share attach attached_record_stream detach deallocate_on pool_enter
        scope_leave synchronize allocate_at handle lease lease_release lease_discard library_is_available handle_stats
        reset_peak_handle_stats warm_handles trim_handles set_handle_limit);
    assert_eq!(compile(&text), (true, String::new()));
    assert!(!compile(&format!("{text}_Static_assert(sizeof(gpupool_block) == 1, \"\");\n")).0);
}

#[test]
fn the_libraries_are_those_of_the_header_by_name_and_number() {
    let pools = [
        Cudnn::pool(),
        Cusparse::pool(),
        Cudss::pool(),
        Cublas::pool(),
        CublasLt::pool(),
        Cusolver::pool(),
        Miopen::pool(),
        HostHandles::pool(),
        Hipblas::pool(),
        HipblasLt::pool(),
        Hipsolver::pool(),
        Hipsparse::pool(),
    ];
    let mut text = "#include <gpupool.h>\n".to_owned();
    for (number, pool) in pools.iter().enumerate() {
        let name = pool.name().to_uppercase();
        text += &format!("_Static_assert(GPUPOOL_{name} == {number}, \"{name}\");\n");
    }
    assert_eq!(compile(&text), (true, String::new()));
    // Each number is that of this pool in C, too, and there are no others.
    for (number, pool) in (0..).zip(pools) {
        // SAFETY: it takes numbers, and the limit is taken off again.
        unsafe {
            assert_eq!((C_API.set_handle_limit)(number, 40 + number as u64), 0);
            assert_eq!(pool.limit(), Some(40 + number as usize));
            assert_eq!((C_API.set_handle_limit)(number, u64::MAX), 0);
        }
        assert_eq!(pool.limit(), None);
    }
    // SAFETY: it takes numbers.
    assert_ne!(unsafe { (C_API.set_handle_limit)(12, 1) }, 0);
}
