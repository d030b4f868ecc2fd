//! Work of gpupool that takes time or is rare: an NVTX range for profilers, and a record of the `log` crate. Each place
//! has one line for the range, an [`Activity`], and one for the record, a macro of `log`. Both are only where a driver
//! or library is called, or a request waits: never on a hit, nor under a lock of gpupool's, since a logger may use
//! gpupool. With both off each costs the load of one atomic.

use std::fmt;
use std::time::{Duration, Instant};

use super::nvtx::Range;

/// Work under way: a range until this is dropped, also if the work fails.
#[must_use = "the range ends when this is dropped"]
#[derive(Debug)]
pub(crate) struct Activity {
    _range: Range,
    begun: Option<Instant>,
}

impl Activity {
    #[inline]
    pub(crate) fn begin(name: fmt::Arguments<'_>) -> Self {
        Self::new(name, None)
    }

    #[inline]
    pub(crate) fn begin_of(bytes: u64, name: fmt::Arguments<'_>) -> Self {
        Self::new(name, Some(bytes))
    }

    #[inline]
    fn new(name: fmt::Arguments<'_>, bytes: Option<u64>) -> Self {
        // The time is read only if it is logged.
        let is_logged = log::max_level() >= log::LevelFilter::Info;
        Self { _range: Range::new(name, bytes), begun: is_logged.then(Instant::now) }
    }

    /// Returns how long it has taken so far.
    pub(crate) fn took(&self) -> Took {
        Took(self.begun.map(|begun| begun.elapsed()))
    }
}

/// A time for people to read; unknown if logging began meanwhile.
pub(crate) struct Took(pub(crate) Option<Duration>);

impl fmt::Display for Took {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(took) = self.0 else { return f.write_str("an unknown time") };
        let seconds = took.as_secs_f64();
        match seconds {
            1.0.. => write!(f, "{seconds:.1} s"),
            1e-4.. => write!(f, "{:.1} ms", seconds * 1e3),
            _ => write!(f, "{:.0} us", seconds * 1e6),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Took;

    #[test]
    fn times_have_the_unit_that_suits_them() {
        let written = |nanoseconds| Took(Some(Duration::from_nanos(nanoseconds))).to_string();
        assert_eq!(written(1_234), "1 us");
        assert_eq!(written(123_456), "0.1 ms");
        assert_eq!(written(3_300_000), "3.3 ms");
        assert_eq!(written(1_500_000_000), "1.5 s");
    }
}
