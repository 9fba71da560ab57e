//! Whether a secret stands in anything that the programs of a world have written.

use std::io;
use std::path::Path;

use crate::world::{TOKEN, World};

impl World {
    /// All that the programs of this world have logged so far.
    pub fn logs(&self) -> io::Result<String> {
        let mut all = String::new();
        read(&self.folder().join("log"), &mut all)?;
        Ok(all)
    }

    /// Lines of any log that hold the token's secret.
    pub fn leaks(&self) -> io::Result<Vec<String>> {
        let logs = self.logs()?;
        let leaking = logs.lines().filter(|line| line.contains(TOKEN.1));
        Ok(leaking.map(str::to_owned).collect())
    }
}

fn read(folder: &Path, all: &mut String) -> io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            read(&path, all)?;
        } else {
            all.push_str(&String::from_utf8_lossy(&std::fs::read(&path)?));
        }
    }
    Ok(())
}
