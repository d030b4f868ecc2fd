//! The folders below which Python's wheels put shared libraries. Separate from the loader, since a runtime may come in
//! a wheel as well as a library.

use crate::sync::lock;
use std::path::PathBuf;
use std::sync::Mutex;

static SITE_PACKAGES: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Adds `site-packages` folders, below which wheels put their libraries.
///
/// The Python package adds Python's folders; a Rust program needs it only for an environment other than `VIRTUAL_ENV`.
pub fn add_site_packages(folders: impl IntoIterator<Item = PathBuf>) {
    let mut known = lock(&SITE_PACKAGES);
    for folder in folders {
        if !known.contains(&folder) {
            known.push(folder);
        }
    }
}

/// Returns the folders that these environment variables name.
pub(crate) fn variables<const N: usize>(names: [&str; N]) -> impl Iterator<Item = PathBuf> {
    names.map(std::env::var_os).into_iter().flatten().map(PathBuf::from)
}

/// Returns the folders given, then those of the environment that the process was started in.
pub(crate) fn all() -> Vec<PathBuf> {
    let mut folders = lock(&SITE_PACKAGES).clone();
    for environment in variables(["VIRTUAL_ENV", "CONDA_PREFIX"]) {
        let Ok(entries) = environment.join("lib").read_dir() else { continue };
        let versions = entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with("python3"));
        let mut found: Vec<_> = versions.map(|entry| entry.path().join("site-packages")).collect();
        found.sort();
        found.retain(|folder| !folders.contains(folder));
        folders.append(&mut found);
    }
    folders
}

/// Returns the folders below `site-packages` for a wheel's folder. The first part of its name may end in `*`: ROCm's
/// wheels have their GPU family in the name of their package.
pub(crate) fn below(folder: &str) -> Vec<PathBuf> {
    let (first, rest) = folder.split_once('/').unwrap_or((folder, ""));
    let roots = all().into_iter();
    let Some(start) = first.strip_suffix('*') else { return roots.map(|root| root.join(folder)).collect() };
    let matching = |root: PathBuf| {
        let entries = root.read_dir().into_iter().flatten().flatten();
        let mut found: Vec<_> = entries
            .filter(|entry| entry.file_name().to_string_lossy().starts_with(start))
            .map(|entry| entry.path().join(rest))
            .collect();
        found.sort();
        found
    };
    roots.flat_map(matching).collect()
}
