//! Processes that know of each other, as many as a machine may have, and what is taken from one in the middle of a call. How
//! they give memory else is tested from Python, where other processes do what they are told.

use std::env;
use std::io::{BufRead, BufReader, Write, stdin};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use gpupool::runtime::host::{Call, before_call};
use gpupool::{CommitOptions, NeighbourSettings, empty, empty_cache, neighbours, set_neighbour};

use crate::common::memory::{MIB, PAGE, builder, pool};
use crate::common::{device, stream};

const MANY: usize = 200;
/// Set in each of the processes, to its number or to what it does.
const NUMBER: &str = "GPUPOOL_TEST_NEIGHBOUR";
const TEST: &str = "neighbours::two_hundred_processes_know_each_other";

struct Process {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

/// Makes a folder where the processes of a test meet.
fn meeting_place() -> PathBuf {
    let folder =
        env::temp_dir().join(format!("gpupool-neighbours-{}-{:?}", std::process::id(), thread::current().id()));
    for each in ["device", "neighbours"] {
        std::fs::create_dir_all(folder.join(each)).unwrap();
    }
    folder
}

impl Process {
    fn start(number: impl ToString, folder: &Path) -> Self {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", TEST, "--nocapture"])
            .env(NUMBER, number.to_string())
            .env("GPUPOOL_NEIGHBOURS", folder.join("neighbours"))
            .env("GPUPOOL_HOST_SHARED", folder.join("device"))
            // Of which half is for answers.
            .env("GPUPOOL_NEIGHBOUR_DEADLINE_MS", "4000")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, input, output }
    }

    /// Returns what the process knows once it has gone on.
    fn ask(&mut self) -> String {
        self.input.write_all(b"go\n").unwrap();
        self.read("knows: ")
    }

    /// Returns what follows a word on the next line that has it.
    fn read(&mut self, word: &str) -> String {
        let mut line = String::new();
        while self.output.read_line(&mut line).unwrap() > 0 {
            if let Some((_, rest)) = line.split_once(word) {
                return rest.trim().to_owned();
            }
            line.clear();
        }
        panic!("a process ended before it said {word:?}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What each of them does: tells that it is there, and, when asked, how many it knows.
fn be_one(number: &str) {
    gpupool::runtime::host::simulate(1, 64 * MIB).unwrap();
    let settings = NeighbourSettings { name: Some(format!("one of many, {number}")), ..Default::default() };
    set_neighbour(settings, device(0)).unwrap();
    match number {
        "holder" => return hold(),
        "taker" => return take(),
        _ if let Some(call) = GIVING.iter().find(|call| number == format!("{call:?}")) => return give_slowly(*call),
        _ => println!("ready: {number}"),
    }
    wait_for_go();
    let found = neighbours(device(0)).unwrap();
    let own = format!("one of many, {number}");
    assert!(found.iter().any(|each| each.is_self && each.name == own));
    println!("knows: {}", found.len());
    // Until the test drops it.
    wait_for_go();
}

fn wait_for_go() {
    stdin().read_line(&mut String::new()).unwrap();
}

/// Commits a discardable page, for good, that is taken for another process within that call, and says what it was told.
fn hold() {
    let (pool, stream) = (pool(), stream(0));
    let range = pool.reserve_range(12 * PAGE, PAGE).unwrap();
    range.commit(0..12 * PAGE, &stream, CommitOptions { priority: Some(0), fill: None }).unwrap();
    let told = Arc::new(Mutex::new(Vec::new()));
    let each = Arc::clone(&told);
    range.on_discard(move |pages| each.lock().unwrap().push(pages.to_vec())).keep();
    before_call(Call::StreamId, 0, || {
        println!("ready: it has begun");
        wait_for_go();
    });
    range.commit(&[0], &stream, CommitOptions::default()).unwrap();
    println!("knows: {:?}", told.lock().unwrap());
    wait_for_go();
}

/// What the driver does while memory is given: of free memory, and of a pool that was offered.
const GIVING: [Call; 4] = [Call::MemoryUnmap, Call::ExtentRelease, Call::StreamQuery, Call::CopyToHost];

/// Has free memory, and a pool that sleeps for others; a call of the driver's that gives them back ends when it is told to.
fn give_slowly(call: Call) {
    let (pool, stream) = (builder().sleeps_for_others(true).build().unwrap(), stream(0));
    let kept = pool.empty(24 * MIB, &stream).unwrap();
    drop(empty(24 * MIB, &stream).unwrap());
    before_call(call, 0, || {
        println!("ready: it gives");
        wait_for_go();
    });
    println!("ready: it has both");
    loop {
        thread::park();
        let _ = &kept;
    }
}

#[test]
fn who_gives_memory_answers_the_others_meanwhile() {
    for call in GIVING {
        let folder = meeting_place();
        let [mut giver, mut taker, mut watcher] =
            [format!("{call:?}"), "taker".to_owned(), "watcher".to_owned()].map(|role| Process::start(role, &folder));
        for process in [&mut giver, &mut taker, &mut watcher] {
            process.read("ready: ");
        }
        taker.input.write_all(b"go\n").unwrap();
        assert_eq!(giver.read("ready: "), "it gives");
        assert_eq!(watcher.ask(), "3", "{call:?}");
        giver.input.write_all(b"go\n").unwrap();
        taker.read("knows: ");
        drop((giver, taker, watcher));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}

/// Takes nearly all memory, when it is to go, and gives it back.
fn take() {
    println!("ready: it has none");
    wait_for_go();
    drop(empty(60 * MIB, &stream(0)).unwrap());
    empty_cache().unwrap();
    println!("knows: nothing");
    wait_for_go();
}

#[test]
fn a_page_that_is_taken_while_it_is_committed_again_is_told_before_that_returns() {
    let folder = meeting_place();
    let [mut holder, mut taker] = ["holder", "taker"].map(|role| Process::start(role, &folder));
    taker.read("ready: ");
    holder.read("ready: ");
    taker.ask();
    let told = holder.ask();
    assert!(told.starts_with("[[0, 1, 2, 3") && !told.contains("[]"), "{told}");
    drop((holder, taker));
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn two_hundred_processes_know_each_other() {
    if let Ok(number) = env::var(NUMBER) {
        return be_one(&number);
    }
    let folder = meeting_place();
    let mut all: Vec<_> = (0..MANY).map(|number| Process::start(number, &folder)).collect();
    all.iter_mut().for_each(|process| drop(process.read("ready: ")));
    // The first answer of each has all of them, within half of the deadline.
    for process in all.iter_mut().rev().step_by(MANY / 20) {
        assert_eq!(process.ask(), MANY.to_string());
    }
    // Killed, all leave their sockets, which the next one removes.
    drop(all);
    assert_eq!(std::fs::read_dir(folder.join("neighbours")).unwrap().count(), MANY);
    let mut last = Process::start(MANY, &folder);
    last.read("ready: ");
    assert_eq!(last.ask(), "1");
    assert_eq!(std::fs::read_dir(folder.join("neighbours")).unwrap().count(), 1);
    drop(last);
    std::fs::remove_dir_all(&folder).unwrap();
}
