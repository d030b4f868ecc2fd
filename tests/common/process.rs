//! Tests in processes of their own: those that change what a process has once, such as its simulated devices.

use std::process::Command;

/// Set in the process of one test.
const OWN: &str = "GPUPOOL_TEST_OWN_PROCESS";

/// Runs the rest of the test in a process of its own: there the test goes on after this, here it returns at once.
macro_rules! in_own_process {
    () => {{
        fn here() {}
        if $crate::common::process::ran(std::any::type_name_of_val(&here)) {
            return;
        }
    }};
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
    let test = here.split_once("::").and_then(|(_, path)| path.rsplit_once("::")).expect("a path in this program").0;
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
