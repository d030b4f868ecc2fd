//! Trace files: the replay of a log, and a reader of snapshots' pickles, our own since no library's bounds its memory.

use std::fmt::Display;
use std::io::{self, BufReader, Read};

use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};

use crate::error::{Error, Result};
use crate::python::error::asking;
use crate::replay::{ReplayAllocator, ReplayEvent, ReplayResult, ReplaySettings};

/// In a slot's number: the event frees it.
const FREE: u32 = 1 << 31;

value_class! {
    #[pyclass(name = "ReplayResult", module = "gpupool._native", frozen, get_all)]
    PyReplayResult = "ReplayResult" from result: ReplayResult {
        peak_reserved: u64 = result.peak_reserved,
        driver_calls: u64 = result.driver_calls,
        moved_pages: u64 = result.moved_pages,
        cold_ns: f64 = result.cold_ns,
        warm_ns: f64 = result.warm_ns,
        reserved: Vec<(usize, u64)> = result.reserved,
    }
}

/// Unpacks little-endian numbers.
fn numbers<const N: usize, T>(bytes: &[u8], from: impl Fn([u8; N]) -> T) -> impl ExactSizeIterator<Item = T> {
    bytes.as_chunks().0.iter().map(move |&chunk| from(chunk))
}

fn events(slots: &[u8], sizes: &[u8], streams: &[u8], slot_count: usize) -> Result<Vec<ReplayEvent>> {
    let slots = numbers(slots, u32::from_le_bytes);
    let sizes = numbers(sizes, u64::from_le_bytes);
    let streams = numbers(streams, u32::from_le_bytes);
    let wrong = || Error::invalid_value("the packed events do not belong together");
    if slots.len() != sizes.len() || slots.len() != streams.len() {
        return Err(wrong());
    }
    let mut events = Vec::new();
    events
        .try_reserve_exact(slots.len())
        .map_err(|_| Error::unavailable(format!("this process has no memory to replay {} events", slots.len())))?;
    for ((slot, size), stream) in slots.zip(sizes).zip(streams) {
        let allocate = (slot & FREE == 0).then_some(size);
        let slot = slot & !FREE;
        if slot as usize >= slot_count {
            return Err(wrong());
        }
        events.push(ReplayEvent { slot, allocate, stream });
    }
    Ok(events)
}

fn allocator(name: &str) -> Result<ReplayAllocator> {
    match name {
        "gpupool" => Ok(ReplayAllocator::Gpupool),
        "driver" => Ok(ReplayAllocator::Driver),
        "async" => Ok(ReplayAllocator::Async),
        other => Err(Error::invalid_value(format!("{other} is not an allocator: gpupool, driver or async"))),
    }
}

/// Runs a replay that calls `watch` as it goes. What that raises, or Ctrl-C, ends the replay and is raised.
fn watched<T: Send>(
    py: Python<'_>,
    watch: Option<Py<PyAny>>,
    run: impl FnOnce(&mut (dyn FnMut(f64) -> bool + Send)) -> Result<Option<T>> + Send,
) -> PyResult<T> {
    let ask = |py: Python<'_>, part: f64| {
        py.check_signals()?;
        watch.as_ref().map_or(Ok(()), |watch| watch.call1(py, (part,)).map(drop))
    };
    let ended = || Error::internal("a replay ended early, though no callback asked for that");
    Ok(asking(py, ask, run)?.ok_or_else(ended)?)
}

#[doc = docstring!("replay")]
#[pyfunction(signature = (slots, sizes, streams, slot_count, threads, allocator, watch = None, changes = 0, lag = 0))]
#[expect(clippy::too_many_arguments, reason = "a trace is three arrays and a count")]
pub(crate) fn replay(
    py: Python<'_>,
    slots: &[u8],
    sizes: &[u8],
    streams: &[u8],
    slot_count: usize,
    threads: usize,
    allocator: &str,
    watch: Option<Py<PyAny>>,
    changes: usize,
    lag: usize,
) -> PyResult<PyReplayResult> {
    let settings = ReplaySettings { allocator: self::allocator(allocator)?, lag };
    let events = events(slots, sizes, streams, slot_count)?;
    watched(py, watch, |watch| crate::replay::replay(&events, threads, settings, changes, watch)).map(Into::into)
}

#[doc = docstring!("replay_reserved")]
#[pyfunction(signature = (slots, sizes, streams, slot_count, most, allocator, watch = None))]
#[expect(clippy::too_many_arguments, reason = "a trace is three arrays and a count")]
pub(crate) fn replay_reserved(
    py: Python<'_>,
    slots: &[u8],
    sizes: &[u8],
    streams: &[u8],
    slot_count: usize,
    most: usize,
    allocator: &str,
    watch: Option<Py<PyAny>>,
) -> PyResult<Vec<(usize, u64)>> {
    let settings = ReplaySettings { allocator: self::allocator(allocator)?, lag: 0 };
    let events = events(slots, sizes, streams, slot_count)?;
    watched(py, watch, |watch| crate::replay::replay_reserved(&events, settings, most, watch))
}

// What a pickle of a snapshot may have: dictionaries, lists, tuples, numbers and texts, and nothing else.
//
// `pickle.Unpickler` cannot be bounded: a file of 8 bytes makes it take 4 GiB for a memo, another has it hash tuples
// that double at each level. Here every length is of bytes that are in the file, integers have 64 bits, keys are texts
// or integers, and what is made is counted against a limit. Opcodes that could run code are refused, and nothing
// recurses.

/// How deep marks may be nested; a snapshot's are not nested ten deep.
const MAX_DEPTH: usize = 1000;
const MAX_PROTOCOL: u8 = 5;
/// The longest text, in bytes; a snapshot has names and settings.
const MAX_TEXT: u64 = 1 << 20;
/// The most characters that an error shows of the name of what could run code.
const MAX_NAME: usize = 80;

// About what values take of memory in CPython, and the place of each: on the stack, then in a list or another value, into
// which it moves. A value that is used again takes its place alone.
const REFERENCE: u64 = 8;
const NUMBER: u64 = 32;
const TEXT: u64 = 56;
const LIST: u64 = 64;
const DICTIONARY: u64 = 72;
const ITEM: u64 = 16;

type Value<'py> = Bound<'py, PyAny>;

/// Returns the error for a file that is not as it must be.
fn wrong(what: String) -> PyErr {
    Error::invalid_value(what).into()
}

/// Runs a pickle, which is a program that puts values together on a stack.
struct Machine<'py> {
    py: Python<'py>,
    input: Input<'py>,
    stack: Vec<Value<'py>>,
    /// The places in the stack where the values of the next list, dictionary or tuple begin.
    marks: Vec<usize>,
    memo: Vec<Option<Value<'py>>>,
    /// The place in the file of the opcode that is carried out.
    opcode_at: u64,
    taken: u64,
    limit: u64,
}

impl<'py> Machine<'py> {
    fn here(&self, what: impl Display) -> PyErr {
        wrong(format!("{what} at byte {}", self.opcode_at))
    }

    fn take_memory(&mut self, bytes: u64) -> PyResult<()> {
        self.taken = self.taken.saturating_add(bytes);
        if self.taken <= self.limit {
            return Ok(());
        }
        Err(PyOverflowError::new_err(format!("the values take more than {} bytes", self.limit)))
    }

    fn push<T>(&mut self, value: Bound<'py, T>, bytes: u64) -> PyResult<()> {
        self.take_memory(REFERENCE + bytes)?;
        self.stack.push(value.into_any());
        Ok(())
    }

    fn pop(&mut self) -> PyResult<Value<'py>> {
        // What is below a mark belongs to another value.
        let bottom = self.marks.last().copied().unwrap_or(0);
        let value = if self.stack.len() > bottom { self.stack.pop() } else { None };
        value.ok_or_else(|| self.here("no value to take"))
    }

    fn pop_several(&mut self, count: u8) -> PyResult<Vec<Value<'py>>> {
        let mut values = (0..count).map(|_| self.pop()).collect::<PyResult<Vec<_>>>()?;
        values.reverse();
        Ok(values)
    }

    /// Returns the values from the last mark on.
    fn pop_to_mark(&mut self) -> PyResult<Vec<Value<'py>>> {
        let mark = self.marks.pop().ok_or_else(|| self.here("no mark"))?;
        Ok(self.stack.split_off(mark))
    }

    fn mark(&mut self) -> PyResult<()> {
        if self.marks.len() == MAX_DEPTH {
            return Err(self.here(format_args!("values nested deeper than {MAX_DEPTH}")));
        }
        self.marks.push(self.stack.len());
        Ok(())
    }

    /// Takes a value, or a mark that has none.
    fn discard(&mut self) -> PyResult<()> {
        if self.marks.last() == Some(&self.stack.len()) {
            self.marks.pop();
            return Ok(());
        }
        self.pop().map(drop)
    }

    fn duplicate(&mut self) -> PyResult<()> {
        let value = self.pop()?;
        self.push(value.clone(), 0)?;
        self.push(value, 0)
    }

    fn integer(&mut self, number: i128) -> PyResult<()> {
        let value = match (i64::try_from(number), u64::try_from(number)) {
            (Ok(number), _) => PyInt::new(self.py, number),
            (_, Ok(number)) => PyInt::new(self.py, number),
            _ => return Err(self.here("an integer of more than 64 bits")),
        };
        self.push(value, NUMBER)
    }

    fn unsigned(&mut self, width: usize) -> PyResult<()> {
        let number = self.input.number(width)?;
        self.integer(number.into())
    }

    /// An integer with a sign, after the number of its bytes.
    fn long(&mut self, width: usize) -> PyResult<()> {
        let count = self.input.number(width)? as usize;
        // 64 bits and a sign.
        if count > 9 {
            return Err(self.here("an integer of more than 64 bits"));
        }
        let (low, high) = (self.input.number(count.min(8))?, self.input.number(count.saturating_sub(8))?);
        let number = i128::from(low) | i128::from(high) << 64;
        // Shifted up and down again, the highest bit of those bytes is the sign.
        let unused = 128 - 8 * count as u32;
        self.integer(number.checked_shl(unused).map_or(0, |number| number >> unused))
    }

    /// A text or bytes, after the number of its bytes. `make` says how many bytes of memory each of those takes.
    fn text(&mut self, width: usize, make: impl FnOnce(&[u8]) -> (Value<'py>, u64)) -> PyResult<()> {
        let count = self.input.number(width)?;
        if count > MAX_TEXT {
            return Err(self.here(format_args!("a text of {count} bytes, more than {MAX_TEXT},")));
        }
        let (value, times) = make(&self.input.bytes(count)?);
        self.push(value, TEXT + times * count)
    }

    fn append(&mut self, values: Vec<Value<'py>>) -> PyResult<()> {
        let list = self.stack.last().and_then(|value| value.cast::<PyList>().ok());
        let list = list.ok_or_else(|| self.here("no list to append to"))?;
        values.into_iter().try_for_each(|value| list.append(value))
    }

    fn set(&mut self, values: Vec<Value<'py>>) -> PyResult<()> {
        self.take_memory(ITEM * values.len() as u64)?;
        let dictionary = self.stack.last().and_then(|value| value.cast::<PyDict>().ok());
        let dictionary = dictionary.ok_or_else(|| self.here("no dictionary to fill"))?;
        for pair in values.chunks(2) {
            let [key, value] = pair else { return Err(self.here("a key without a value")) };
            // Hashing a nested tuple can take exponential time, or more of the C stack than there is.
            if !(key.is_instance_of::<PyString>() || key.is_instance_of::<PyInt>()) {
                return Err(self.here("a key that is neither text nor an integer"));
            }
            dictionary.set_item(key, value)?;
        }
        Ok(())
    }

    fn get(&mut self, width: usize) -> PyResult<()> {
        let place = self.input.number(width)?;
        let known = self.memo.get(place as usize).cloned().flatten();
        let value = known.ok_or_else(|| self.here(format_args!("no memo entry {place}")))?;
        self.push(value, 0)
    }

    fn put(&mut self, place: u64) -> PyResult<()> {
        // Entries are numbered from 0 on, and each takes a byte of the file at least.
        if place > self.opcode_at {
            return Err(self.here(format_args!("memo entry {place}, though no file has more entries than bytes,")));
        }
        let place = place as usize;
        let value = self.stack.last().cloned().ok_or_else(|| self.here("no value to remember"))?;
        if place >= self.memo.len() {
            self.take_memory(REFERENCE * (place + 1 - self.memo.len()) as u64)?;
            self.memo.resize(place + 1, None);
        }
        self.memo[place] = Some(value);
        Ok(())
    }

    fn protocol(&mut self) -> PyResult<()> {
        match self.input.byte()? {
            0..=MAX_PROTOCOL => Ok(()),
            other => Err(wrong(format!("unsupported pickle protocol: {other}"))),
        }
    }

    /// Carries out the next opcode, and returns the content of the file if that was the last.
    fn step(&mut self) -> PyResult<Option<Value<'py>>> {
        let py = self.py;
        // CPython takes four bytes for each character if one of them needs so many. Half of a surrogate pair, which cannot be
        // printed, becomes replacement characters.
        let text = |bytes: &[u8]| {
            (PyString::new(py, &String::from_utf8_lossy(bytes)).into_any(), if bytes.is_ascii() { 1 } else { 4 })
        };
        let binary = |bytes: &[u8]| (PyBytes::new(py, bytes).into_any(), 1);
        self.opcode_at = self.input.offset();
        let opcode = self.input.byte()?;
        match opcode {
            0x80 => self.protocol()?,
            // A frame's length, of no use here.
            0x95 => drop(self.input.number(8)?),
            b'.' => return self.pop().map(Some),
            b'(' => self.mark()?,
            b'0' => self.discard()?,
            b'1' => drop(self.pop_to_mark()?),
            b'2' => self.duplicate()?,
            b'N' => self.push(py.None().into_bound(py), 0)?,
            0x88 | 0x89 => self.push((opcode == 0x88).into_pyobject(py)?.to_owned(), 0)?,
            b'K' => self.unsigned(1)?,
            b'M' => self.unsigned(2)?,
            b'J' => {
                let number = self.input.number(4)? as i32;
                self.integer(number.into())?;
            }
            0x8a => self.long(1)?,
            0x8b => self.long(4)?,
            b'G' => {
                let number = f64::from_bits(self.input.number(8)?.swap_bytes());
                self.push(PyFloat::new(py, number), NUMBER)?;
            }
            0x8c => self.text(1, text)?,
            b'X' => self.text(4, text)?,
            0x8d => self.text(8, text)?,
            b'C' => self.text(1, binary)?,
            b'B' => self.text(4, binary)?,
            0x8e => self.text(8, binary)?,
            b'h' => self.get(1)?,
            b'j' => self.get(4)?,
            b'q' | b'r' => {
                let place = self.input.number(if opcode == b'q' { 1 } else { 4 })?;
                self.put(place)?;
            }
            0x94 => self.put(self.memo.len() as u64)?,
            // A class or a function by its name, which the first two have as lines and the last has on the stack.
            b'c' | b'i' => return Err(named(&self.input.line(MAX_NAME)?, &self.input.line(MAX_NAME)?)),
            0x93 => {
                let name = start_of(&self.pop()?);
                return Err(named(&start_of(&self.pop()?), &name));
            }
            _ if self.fill(opcode)? => {}
            _ => {
                return Err(
                    self.here(format_args!("opcode {opcode:#04x}, which no snapshot has and which could run code,"))
                );
            }
        }
        Ok(None)
    }

    /// Takes one step with an opcode of lists, tuples and dictionaries. Returns whether it is one.
    fn fill(&mut self, opcode: u8) -> PyResult<bool> {
        let values = match opcode {
            b']' | b'}' | b')' => Vec::new(),
            b'a' => self.pop_several(1)?,
            b's' => self.pop_several(2)?,
            0x85..=0x87 => self.pop_several(opcode - 0x84)?,
            b'e' | b'l' | b't' | b'u' | b'd' => self.pop_to_mark()?,
            _ => return Ok(false),
        };
        match opcode {
            b']' | b'l' => self.push(PyList::empty(self.py), LIST)?,
            b'}' | b'd' => self.push(PyDict::new(self.py), DICTIONARY)?,
            _ => (),
        }
        match opcode {
            b']' | b'a' | b'e' | b'l' => self.append(values)?,
            b'}' | b's' | b'u' | b'd' => self.set(values)?,
            _ => self.push(PyTuple::new(self.py, values)?, LIST)?,
        }
        Ok(true)
    }
}

fn named(module: &str, name: &str) -> PyErr {
    wrong(format!("it names {}.{}, which could run code", module.escape_debug(), name.escape_debug()))
}

/// Returns the start of a text, and of any other value nothing.
fn start_of(value: &Value<'_>) -> String {
    let text = value.cast::<PyString>().map(|text| text.to_string_lossy().into_owned());
    text.unwrap_or_default().chars().take(MAX_NAME).collect()
}

#[doc = docstring!("unpickle")]
#[pyfunction]
pub(crate) fn unpickle<'py>(file: Bound<'py, PyAny>, memory_limit: u64) -> PyResult<Value<'py>> {
    let mut machine = Machine {
        py: file.py(),
        input: Input::new(file),
        stack: Vec::new(),
        marks: Vec::new(),
        memo: Vec::new(),
        opcode_at: 0,
        taken: 0,
        limit: memory_limit,
    };
    loop {
        if let Some(content) = machine.step()? {
            return Ok(content);
        }
    }
}

/// How many bytes are read at a time.
const CHUNK: usize = 1 << 18;

/// A file of Python's, and how many bytes of it were read.
struct PythonFile<'py> {
    file: Bound<'py, PyAny>,
    count: u64,
}

impl Read for PythonFile<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.file.call_method1("read", (into.len(),)).map_err(io::Error::other)?;
        let mut bytes = read.cast::<PyBytes>().map_err(|wrong| io::Error::other(PyErr::from(wrong)))?.as_bytes();
        let count = bytes.read(into)?;
        self.count += count as u64;
        Ok(count)
    }
}

/// A file that is read in chunks: a length without its bytes takes no memory.
struct Input<'py>(BufReader<PythonFile<'py>>);

impl<'py> Input<'py> {
    fn new(file: Bound<'py, PyAny>) -> Self {
        Self(BufReader::with_capacity(CHUNK, PythonFile { file, count: 0 }))
    }

    /// Returns the place in the file of the next byte.
    fn offset(&self) -> u64 {
        self.0.get_ref().count - self.0.buffer().len() as u64
    }

    fn cut_off(&self) -> PyErr {
        wrong(format!("cut off at byte {}", self.0.get_ref().count))
    }

    fn byte(&mut self) -> PyResult<u8> {
        Ok(self.number(1)? as u8)
    }

    /// Returns a number of so many bytes, 8 at most, the lowest first.
    fn number(&mut self, width: usize) -> PyResult<u64> {
        let mut bytes = [0; 8];
        self.0.read_exact(&mut bytes[..width]).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => self.cut_off(),
            _ => error.into(),
        })?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn bytes(&mut self, count: u64) -> PyResult<Vec<u8>> {
        let mut bytes = Vec::with_capacity(CHUNK.min(count as usize));
        self.0.by_ref().take(count).read_to_end(&mut bytes)?;
        if bytes.len() as u64 == count { Ok(bytes) } else { Err(self.cut_off()) }
    }

    /// Returns a line in ASCII, or the start of a long one.
    fn line(&mut self, most: usize) -> PyResult<String> {
        let mut line = String::new();
        while line.len() < most {
            match self.byte()? {
                byte if byte.is_ascii_graphic() => line.push(byte.into()),
                b'\n' => break,
                _ => line.push('?'),
            }
        }
        Ok(line)
    }
}
