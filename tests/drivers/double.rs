//! A process of the test's own with the double of a driver.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use gpupool::Error;

/// Set in the process that runs on the double.
const ON_A_DOUBLE: &str = "GPUPOOL_TEST_ON_A_DOUBLE";

/// A platform whose driver has a double.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Platform {
    pub(crate) name: &'static str,
    source: &'static str,
    file: &'static str,
}

pub(crate) const CUDA: Platform = Platform { name: "cuda", source: "libcuda.c", file: "libcuda.so.1" };
pub(crate) const HIP: Platform = Platform { name: "hip", source: "libamdhip64.c", file: "libamdhip64.so.7" };

/// Compiles the double to a folder of the test's; none where there is no compiler.
fn built(platform: Platform, test: &str) -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test.replace(':', "_"));
    fs::create_dir_all(&folder).expect("a folder for the double");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/abi").join(platform.source);
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-w", &format!("-Wl,-soname,{}", platform.file), "-o"])
        .arg(folder.join(platform.file))
        .arg(source)
        .status();
    match compiled {
        Ok(status) => assert!(status.success(), "the double does not compile: {status}"),
        Err(error) => {
            println!("skipped: needs a compiler, cc: {error}");
            return None;
        }
    }
    Some(folder)
}

/// Runs this program again on the double for the test of this path, unless this is that process, and returns whether it did.
///
/// # Panics
/// If the test fails there, or the process ends otherwise.
#[track_caller]
pub(crate) fn ran(here: &str, platform: Platform) -> bool {
    if env::var_os(ON_A_DOUBLE).is_some() {
        return false;
    }
    let test = here.split_once("::").and_then(|(_, path)| path.rsplit_once("::")).expect("a path in this program").0;
    let Some(folder) = built(platform, test) else { return true };
    let ended = Command::new(env::current_exe().expect("the path of this program"))
        .args(["--exact", test, "--nocapture"])
        .env(ON_A_DOUBLE, "1")
        .env("GPUPOOL_RUNTIME", platform.name)
        .env("LD_LIBRARY_PATH", folder)
        .envs([("FAKE_DEVICES", "2"), ("FAKE_VMM", "1")])
        .output()
        .expect("another process");
    let [said, complained] = [ended.stdout, ended.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(ended.status.success(), "{test}: {}\n{said}{complained}", ended.status);
    assert!(said.contains("1 passed"), "no test is called {test}:\n{said}");
    true
}

/// Runs the rest of the test in a process on the double of a platform: there it goes on after this, here it returns at once.
macro_rules! on_double {
    ($platform:expr) => {{
        fn here() {}
        if $crate::double::ran(std::any::type_name_of_val(&here), $platform) {
            return;
        }
    }};
}
pub(crate) use on_double;

/// Sets a variable that the double reads at each call.
pub(crate) fn set(variable: &str, value: &str) {
    // SAFETY: the process runs one test, whose other threads read no variables meanwhile.
    unsafe { env::set_var(variable, value) };
}

/// Makes a function return this status from now on.
pub(crate) fn fail(function: &str, status: i32) {
    set("FAKE_FAIL", &format!("{function}={status}"));
}

/// Makes no function fail any more.
pub(crate) fn mend() {
    set("FAKE_FAIL", "");
}

/// Returns a function of the double's, or of the driver's that gpupool does not call.
pub(crate) fn function<F: Copy>(name: &std::ffi::CStr) -> F {
    assert_eq!(size_of::<F>(), size_of::<usize>(), "not a pointer");
    // SAFETY: the name ends with a zero, and the double is the process's one library of its name.
    let address = unsafe {
        let double = libc::dlopen(CUDA.file_name().as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
        libc::dlsym(double, name.as_ptr())
    };
    assert!(!address.is_null(), "{name:?} is not there");
    // SAFETY: the caller gives the function's type.
    unsafe { std::mem::transmute_copy(&address) }
}

impl Platform {
    fn file_name(self) -> std::ffi::CString {
        std::ffi::CString::new(self.file).expect("a name without zeros")
    }
}

/// Returns what a call is refused with.
#[track_caller]
pub(crate) fn refusal<T>(outcome: Result<T, Error>, what: &str) -> String {
    match outcome {
        Ok(_) => panic!("{what} was not refused"),
        Err(error) => error.to_string(),
    }
}
