//! What a program calls of the simulated platform, one trait of a runtime in each file.
//!
//! Each call first keeps the rules on captures, and fails where a test wants it to. Then it turns to what is simulated:
//! the timeline of streams and events, the devices' memory and addresses. These use nothing of this folder.

mod capture;
mod memory;
mod sharing;
mod streams;
mod virtual_memory;
