//! Tests in processes of their own: those that change what a process has once, such as its simulated devices.

use std::fs::OpenOptions;
use std::io::Write;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use gpupool::runtime::host::driver_calls;

/// Set in the process of one test.
const OWN: &str = "GPUPOOL_TEST_OWN_PROCESS";
/// A file that gets a line from each test: how many calls of the driver it made, whether they are as many as its time
/// allows, how many seconds it took, and its name.
const REPORT: &str = "GPUPOOL_TEST_REPORT";
/// Whether the test goes on for a time.
static IS_BY_TIME: AtomicBool = AtomicBool::new(false);

/// Notes that how much the test does depends on how fast the machine is.
pub(crate) fn set_by_time() {
    IS_BY_TIME.store(true, Ordering::Relaxed);
}

/// Tells the report, at a test's end, what it took.
pub(crate) struct Reported {
    test: &'static str,
    start: Instant,
}

impl Reported {
    pub(crate) fn new(here: &'static str) -> Self {
        Self { test: name_of(here), start: Instant::now() }
    }
}

impl Drop for Reported {
    fn drop(&mut self) {
        let Some(file) = std::env::var_os(REPORT) else { return };
        let amount = if IS_BY_TIME.load(Ordering::Relaxed) { "by time" } else { "the same each time" };
        let seconds = self.start.elapsed().as_secs_f64();
        let line = format!("{}\t{amount}\t{seconds:.2}\t{}\n", driver_calls(), self.test);
        // One write, so that lines of processes that end at once stay whole.
        let written = OpenOptions::new()
            .create(true)
            .append(true)
            .open(file)
            .and_then(|mut file| file.write_all(line.as_bytes()));
        if let Err(error) = written {
            eprintln!("{REPORT}: {error}");
        }
    }
}

/// Returns the path of the test that has the function `here`, in its program.
fn name_of(here: &str) -> &str {
    here.split_once("::").and_then(|(_, path)| path.rsplit_once("::")).expect("a path in this program").0
}

/// Runs the rest of the test in a process of its own: there the test goes on after this, here it returns at once.
macro_rules! in_own_process {
    () => {
        fn here() {}
        if $crate::common::process::ran(std::any::type_name_of_val(&here)) {
            return;
        }
        let _reported = $crate::common::process::Reported::new(std::any::type_name_of_val(&here));
    };
}

/// Runs this program again for the test that has the function `here`, unless this is that process, and says whether it did.
///
/// # Panics
/// If the test fails there.
#[track_caller]
pub(crate) fn ran(here: &str) -> bool {
    if std::env::var_os(OWN).is_some() {
        return false;
    }
    let test = name_of(here);
    let ended = Command::new(std::env::current_exe().expect("the path of this program"))
        .args(["--exact", test, "--nocapture", "--include-ignored"])
        .env(OWN, "1")
        .output()
        .expect("another process");
    let [said, complained] = [ended.stdout, ended.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(ended.status.success(), "{test}: {}\n{said}{complained}", ended.status);
    assert!(said.contains("1 passed"), "no test is called {test}:\n{said}");
    print!("{said}{complained}");
    true
}
