//! How a library was found, in the words that users know.

/// How a library was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Origin {
    /// `GPUPOOL_<NAME>_PATH` names the file.
    Environment,
    /// Other code had loaded it into the process.
    Process,
    /// A pip wheel's folder below `site-packages`.
    Wheel,
    /// The `lib` folder of a conda environment.
    Conda,
    /// `CUDA_HOME`, `CUDA_PATH`, `ROCM_PATH` or `HIP_PATH`, or where the toolkit's installer puts it.
    Toolkit,
    /// The dynamic linker found it: `LD_LIBRARY_PATH`, or the system's folders.
    System,
}

impl Origin {
    /// Returns the name in Python and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Environment => "environment",
            Self::Process => "process",
            Self::Wheel => "wheel",
            Self::Conda => "conda",
            Self::Toolkit => "toolkit",
            Self::System => "system",
        }
    }
}
