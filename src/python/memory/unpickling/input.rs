//! The bytes of a pickle, a chunk at a time: a length without its bytes takes no memory.

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::wrong;

/// How many bytes are read at a time.
const CHUNK: usize = 1 << 18;

/// A file that is read in chunks.
pub(super) struct Input<'py> {
    file: Bound<'py, PyAny>,
    chunk: Vec<u8>,
    /// The place in the chunk, and the chunk's place in the file.
    at: usize,
    start: u64,
}

impl<'py> Input<'py> {
    pub(super) fn new(file: Bound<'py, PyAny>) -> Self {
        Self { file, chunk: Vec::new(), at: 0, start: 0 }
    }

    /// Returns the place in the file of the next byte.
    pub(super) fn offset(&self) -> u64 {
        self.start + self.at as u64
    }

    /// Reads the next chunk, of which there must be a byte.
    fn refill(&mut self) -> PyResult<()> {
        self.start += self.chunk.len() as u64;
        self.at = 0;
        let read = self.file.call_method1("read", (CHUNK,))?;
        self.chunk.clear();
        self.chunk.extend_from_slice(read.cast::<PyBytes>()?.as_bytes());
        if self.chunk.is_empty() {
            return Err(wrong(format!("cut off at byte {}", self.start)));
        }
        Ok(())
    }

    pub(super) fn byte(&mut self) -> PyResult<u8> {
        loop {
            if let Some(&byte) = self.chunk.get(self.at) {
                self.at += 1;
                return Ok(byte);
            }
            self.refill()?;
        }
    }

    pub(super) fn array<const N: usize>(&mut self) -> PyResult<[u8; N]> {
        let mut bytes = [0; N];
        for byte in &mut bytes {
            *byte = self.byte()?;
        }
        Ok(bytes)
    }

    /// Returns a number of so many bytes, 8 at most, the lowest first.
    pub(super) fn unsigned(&mut self, width: usize) -> PyResult<u64> {
        let mut number = 0;
        for place in 0..width {
            number |= u64::from(self.byte()?) << (8 * place);
        }
        Ok(number)
    }

    /// Returns what `make` makes of the next bytes. They are copied only if they are in several chunks, and then as they are
    /// read.
    pub(super) fn bytes<T>(&mut self, count: u64, make: impl FnOnce(&[u8]) -> T) -> PyResult<T> {
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let rest = &self.chunk[self.at..];
        if let Some(bytes) = rest.get(..count) {
            let made = make(bytes);
            self.at += count;
            return Ok(made);
        }
        let mut bytes = rest.to_vec();
        while bytes.len() < count {
            self.refill()?;
            self.at = self.chunk.len().min(count - bytes.len());
            bytes.extend_from_slice(&self.chunk[..self.at]);
        }
        Ok(make(&bytes))
    }

    /// Returns a line in ASCII, or the start of a long one.
    pub(super) fn line(&mut self, most: usize) -> PyResult<String> {
        let mut line = String::new();
        loop {
            match self.byte()? {
                byte if byte.is_ascii_graphic() => line.push(byte.into()),
                b'\n' => return Ok(line),
                _ => line.push('?'),
            }
            if line.len() == most {
                return Ok(line);
            }
        }
    }
}
