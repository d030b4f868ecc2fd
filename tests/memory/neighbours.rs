//! Processes that know of each other, as many as a machine may have. How they give memory is tested from Python, where
//! other processes do what they are told.

use std::env;
use std::io::{BufRead, BufReader, Write, stdin};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use gpupool::{NeighbourSettings, neighbours, set_neighbour};

use crate::common::device;
use crate::common::memory::MIB;

const MANY: usize = 200;
/// Set in each of the processes, to its number.
const NUMBER: &str = "GPUPOOL_TEST_NEIGHBOUR";
const TEST: &str = "neighbours::two_hundred_processes_know_each_other";

struct Process {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Process {
    fn start(number: usize, folder: &Path) -> Self {
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

    /// Returns how many neighbours the process knows.
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
    println!("ready: {number}");
    let mut line = String::new();
    stdin().read_line(&mut line).unwrap();
    let found = neighbours(device(0)).unwrap();
    let own = format!("one of many, {number}");
    assert!(found.iter().any(|each| each.is_self && each.name == own));
    println!("knows: {}", found.len());
    // Until the test drops it.
    stdin().read_line(&mut line).unwrap();
}

#[test]
fn two_hundred_processes_know_each_other() {
    if let Ok(number) = env::var(NUMBER) {
        return be_one(&number);
    }
    let folder = env::temp_dir().join(format!("gpupool-neighbours-{}", std::process::id()));
    for each in ["device", "neighbours"] {
        std::fs::create_dir_all(folder.join(each)).unwrap();
    }
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
