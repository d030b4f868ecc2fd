//! What a pool is: its id, its rules and uses, the scopes and captures that lead into it, and limits.

pub(crate) mod capture;
pub(in crate::memory) mod id;
pub(in crate::memory) mod limit;
pub(crate) mod scope;
pub(in crate::memory) mod state;
pub(in crate::memory) mod uses;
