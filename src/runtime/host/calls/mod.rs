//! The calls of the simulated platform, one trait of a runtime in each file. Each call first applies the rules on
//! captures and injected faults. Then it uses what is simulated: the timeline of streams and events, the devices'
//! memory and addresses, which use nothing of this folder.

mod capture;
mod memory;
mod sharing;
mod streams;
mod virtual_memory;
