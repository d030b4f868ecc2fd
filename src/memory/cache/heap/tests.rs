//! A heap against a naive model, with more memory than 32 bits count in units of 512 bytes: no driver is asked, so that
//! the addresses may be made up.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use proptest::prelude::*;

use super::block::{BlockNode, BlockState};
use super::{Cut, Heap, HeapBlock, HeapSearch};
use crate::memory::device::{BLOCKS_MAX, Pages};
use crate::memory::tuning::{ALIGNMENT, LOWEST_BELOW, PAGE};

const TIB: u64 = 1 << 40;
const END: u64 = 16 * TIB;

/// Pages that record nothing: a test finds blocks in the heap itself.
fn no_pages() -> &'static Pages {
    static NONE: LazyLock<Pages> = LazyLock::new(|| Pages::new(PAGE));
    &NONE
}

fn free(heap: &mut Heap, start: u64) {
    let is_there = |block: &BlockNode| block.start == start && block.state() == BlockState::Live;
    let id = heap.map.all.iter().position(is_there);
    assert!(id.is_some(), "no block starts at {start:#x}");
    id.into_iter().for_each(|id| heap.free_block(no_pages(), id as u32));
}

/// Returns where each block of each span starts and ends, and whether it is live.
fn blocks(heap: &mut Heap) -> Vec<Vec<(u64, u64, bool)>> {
    heap.join_freed();
    let of = |block: HeapBlock| (block.start, block.start + block.size, block.is_live);
    heap.views(no_pages()).into_iter().map(|span| span.into_iter().map(of).collect()).collect()
}

#[test]
fn memory_that_comes_in_one_piece_is_free_in_one_piece_however_large_it_is() {
    for bytes in [2 * TIB - ALIGNMENT, 2 * TIB, 2 * TIB + ALIGNMENT, 9 * TIB] {
        let mut heap = Heap::new(Cut::ToSize);
        assert!(heap.add_span(0, bytes));
        assert_eq!(blocks(&mut heap), [[(0, bytes, false)]]);
        assert_eq!(heap.free_bytes(), (bytes, bytes / PAGE * PAGE));
    }
}

#[test]
fn free_neighbours_of_more_than_two_tebibytes_are_one() {
    let (pages, mut heap) = (no_pages(), Heap::new(Cut::ToSize));
    let size = 3 * TIB / 2;
    assert!(heap.add_span(0, size) && heap.add_span(2 * size, size) && heap.add_span(size, size));
    assert_eq!(blocks(&mut heap), [[(0, 3 * size, false)]]);
    let starts: Vec<_> = (0..4).filter_map(|_| heap.allocate(pages, size, HeapSearch::AFew)).collect();
    assert_eq!(starts, [0, size, 2 * size]);
    starts.iter().for_each(|&start| free(&mut heap, start));
    assert_eq!(blocks(&mut heap), [[(0, 3 * size, false)]]);
}

/// Three blocks in a row, each live or free, of which some that are free are taken out.
#[test]
fn what_is_taken_out_leaves_the_rest_as_it_was() {
    let places = [0..1, 1..2, 2..3, 0..2, 1..3, 0..3];
    for (live, taken) in (0..8).flat_map(|live: u64| places.clone().map(|taken| (live, taken))) {
        let is_live = |place: &u64| live >> place & 1 == 1;
        let (pages, mut heap, mut model) = (no_pages(), Heap::new(Cut::ToSize), Model::default());
        assert!(heap.add_span(0, 3 * TIB) && model.add(0, 3 * TIB));
        model.live.extend((0..3).filter_map(|_| heap.allocate(pages, TIB, HeapSearch::AFew)).map(|start| (start, TIB)));
        for place in (0..3).filter(|place| !is_live(place)) {
            model.live.remove(&(place * TIB));
            free(&mut heap, place * TIB);
        }
        heap.join_freed();
        heap.take_pages(pages, taken.start * TIB..taken.end * TIB);
        taken.clone().filter(|place| !is_live(place)).for_each(|place| model.has[place as usize] = false);
        assert_eq!(blocks(&mut heap), model.blocks(), "live: {live:b}, taken: {taken:?}");
    }
}

/// Four blocks in a row, of which some are free, the last of them since just now: it is not joined with its neighbours yet.
#[test]
#[cfg_attr(miri, ignore = "8,000 heaps, and nothing unsafe")]
fn a_request_goes_to_the_lowest_place_and_a_large_one_to_the_smallest() {
    const SIZES: [u64; 4] = [LOWEST_BELOW / 2, LOWEST_BELOW - ALIGNMENT, LOWEST_BELOW, 2 * LOWEST_BELOW];
    for (case, last) in (0..1 << 12).flat_map(|case| (0..4).map(move |last| (case, last))) {
        let row: [_; 4] = std::array::from_fn(|place| (SIZES[case >> (3 * place) & 3], case >> (3 * place) & 4 != 0));
        let (wanted, is_free) = row[last];
        if !is_free {
            continue;
        }
        let (pages, mut heap) = (no_pages(), Heap::new(Cut::ToSize));
        assert!(heap.add_span(0, row.iter().map(|(size, _)| size).sum()));
        let starts = row.map(|(size, _)| heap.allocate(pages, size, HeapSearch::AFew).unwrap_or(END));
        (0..4).filter(|&place| place != last && row[place].1).for_each(|place| free(&mut heap, starts[place]));
        // Where each stretch of free blocks starts, and its bytes.
        let mut free_at = Vec::<(u64, u64)>::new();
        for ((size, _), start) in row.into_iter().zip(starts).filter(|((_, is_free), _)| *is_free) {
            match free_at.last_mut() {
                Some((first, bytes)) if *first + *bytes == start => *bytes += size,
                _ => free_at.push((start, size)),
            }
        }
        free_at.retain(|(_, bytes)| *bytes >= wanted);
        free(&mut heap, starts[last]);
        let found = heap.allocate(pages, wanted, HeapSearch::AFew);
        let taken = free_at.iter().find(|(start, _)| Some(*start) == found);
        if wanted < LOWEST_BELOW {
            assert_eq!(taken, free_at.first(), "{row:?}, freed last: {last}");
        // Where what follows has room too, the block may stay apart from that, as it has just the right size.
        } else if row.get(last + 1).is_none_or(|&(size, is_free)| !is_free || size < wanted) {
            let smallest = free_at.iter().map(|(_, bytes)| bytes).min();
            assert_eq!(taken.map(|(_, bytes)| bytes), smallest, "{row:?}, freed last: {last}");
        }
    }
}

#[test]
fn a_request_for_which_numbers_run_out_changes_nothing() {
    let (pages, mut heap) = (no_pages(), Heap::new(Cut::ToSize));
    assert!(heap.add_span(0, END));
    let starts: Vec<_> = std::iter::from_fn(|| heap.allocate(pages, PAGE, HeapSearch::AFew)).collect();
    // What is left is a block, too.
    assert_eq!(starts.len() as u32, BLOCKS_MAX - 1);
    let last = starts[starts.len() - 1];
    free(&mut heap, last);
    // In the midst of what is free a block needs two numbers, and at its start one.
    assert_eq!(heap.allocate_at(pages, END / 2, PAGE), None);
    assert_eq!(heap.allocate(pages, PAGE, HeapSearch::AFew), Some(last));
}

#[derive(Clone, Debug)]
enum Op {
    Add {
        start: u64,
        size: u64,
    },
    Allocate {
        bytes: u64,
    },
    Free {
        which: usize,
    },
    /// Makes the heap anew with the same blocks.
    Restore,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let tebibytes = |most: u64| (1..=most).prop_map(|number| number * TIB);
    let place = (0..END / TIB).prop_map(|number| number * TIB);
    let odd = (0..3u64).prop_map(|number| number * ALIGNMENT);
    let op = prop_oneof![
        2 => (place, tebibytes(5)).prop_map(|(start, size)| Op::Add { start, size }),
        4 => (tebibytes(4), odd).prop_map(|(bytes, odd)| Op::Allocate { bytes: bytes / 2 + odd }),
        4 => any::<usize>().prop_map(|which| Op::Free { which }),
        1 => Just(Op::Restore),
    ];
    prop::collection::vec(op, 1..40)
}

/// What the heap must contain: its tebibytes, and the live blocks by start.
#[derive(Default)]
struct Model {
    has: [bool; (END / TIB) as usize],
    live: BTreeMap<u64, u64>,
}

impl Model {
    /// Adds memory; false if some of it is there already, or it goes too far.
    fn add(&mut self, start: u64, size: u64) -> bool {
        let Some(places) = self.has.get_mut((start / TIB) as usize..((start + size) / TIB) as usize) else {
            return false;
        };
        let is_new = !places.contains(&true);
        if is_new {
            places.fill(true);
        }
        is_new
    }

    /// Returns the blocks of each span, with what is free between the live ones.
    fn blocks(&self) -> Vec<Vec<(u64, u64, bool)>> {
        let mut spans = Vec::new();
        let mut at = 0;
        while at < END {
            let has = |at: u64| self.has.get((at / TIB) as usize).is_some_and(|&has| has);
            let (start, mut end) = (at, at);
            while has(end) {
                end += TIB;
            }
            at = end + TIB;
            if start < end {
                spans.push(self.span(start, end));
            }
        }
        spans
    }

    fn span(&self, mut start: u64, end: u64) -> Vec<(u64, u64, bool)> {
        let mut span = Vec::new();
        for (&live, &size) in self.live.range(start..end) {
            span.extend((start < live).then_some((start, live, false)));
            span.push((live, live + size, true));
            start = live + size;
        }
        span.extend((start < end).then_some((start, end, false)));
        span
    }

    fn has_room(&self, bytes: u64) -> bool {
        self.blocks().iter().flatten().any(|&(start, end, is_live)| !is_live && end - start >= bytes)
    }
}

proptest! {
    #[test]
    fn a_heap_of_many_tebibytes_loses_none(ops in ops()) {
        let (pages, mut heap, mut model) = (no_pages(), Heap::new(Cut::ToSize), Model::default());
        for op in ops {
            match op {
                Op::Add { start, size } => {
                    if model.add(start, size) {
                        prop_assert!(heap.add_span(start, size));
                    }
                }
                Op::Allocate { bytes } => {
                    let start = heap.allocate(pages, bytes, HeapSearch::Whole);
                    prop_assert_eq!(start.is_some(), model.has_room(bytes));
                    model.live.extend(start.map(|start| (start, bytes)));
                }
                Op::Free { which } => {
                    if let Some(&start) = model.live.keys().nth(which % model.live.len().max(1)) {
                        model.live.remove(&start);
                        free(&mut heap, start);
                    }
                }
                Op::Restore => {
                    heap.join_freed();
                    let pieces = heap.pieces(pages);
                    let made = heap.prepare(pages, pieces);
                    prop_assert!(made.is_ok());
                    made.into_iter().for_each(|made| heap.restore(pages, made));
                }
            }
            prop_assert_eq!(blocks(&mut heap), model.blocks());
            prop_assert_eq!(heap.live(), model.live.values().sum::<u64>());
        }
    }
}
