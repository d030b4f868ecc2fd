//! A library's name as logs and errors write it.

use std::fmt;

use super::Library;
use crate::error::OneLine;

/// A library by its name, and its version if it reports one.
pub(crate) struct Named<'a>(pub(crate) &'a dyn Library);

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", OneLine(self.0.name()))?;
        match self.0.version() {
            Ok(Some((major, minor, patch))) => write!(f, " {major}.{minor}.{patch}"),
            _ => Ok(()),
        }
    }
}
