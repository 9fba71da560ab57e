//! Whether secrets stand anywhere but in memory: in what programs have written, in their arguments and environment.

use std::io;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use crate::run_dir::mounted_at;

/// Secrets that are looked for, and where they were found.
pub struct Exposure {
    /// What each is called, and the forms that it may have.
    secrets: Vec<(String, Vec<String>)>,
    hits: Vec<String>,
    looked: u64,
}

impl std::fmt::Debug for Exposure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exposure")
            .field("hits", &self.hits)
            .field("looked", &self.looked)
            .finish_non_exhaustive()
    }
}

impl Exposure {
    /// Looks for these, each by its name, as they are and in base64. Of a text of several lines each long one counts: the
    /// body of a PEM file.
    pub fn of(secrets: &[(&str, &str)]) -> Self {
        let forms = |text: &str| {
            let lines = text
                .lines()
                .filter(|line| line.len() >= 30 || !text.contains('\n'));
            let lines = lines.filter(|line| !line.starts_with("-----"));
            let mut forms: Vec<String> = lines.map(str::to_owned).collect();
            // Whatever stands before it, the middle of its base64 is the same for one of three offsets.
            forms.push(BASE64.encode(text).trim_end_matches('=').to_owned());
            forms
        };
        Self {
            secrets: secrets
                .iter()
                .map(|(name, text)| ((*name).to_owned(), forms(text)))
                .collect(),
            hits: Vec::new(),
            looked: 0,
        }
    }

    /// Where secrets were found: names and places.
    pub fn hits(&self) -> &[String] {
        &self.hits
    }

    /// How many bytes were looked at.
    pub const fn looked(&self) -> u64 {
        self.looked
    }

    /// Looks at a text that came from `place`.
    pub fn text(&mut self, place: &str, text: &[u8]) {
        self.looked += u64::try_from(text.len()).unwrap_or_default();
        let text = String::from_utf8_lossy(text);
        for (name, forms) in &self.secrets {
            if forms.iter().any(|form| text.contains(form)) {
                self.hits.push(format!("{name} in {place}"));
            }
        }
    }

    /// Looks at all files below a folder, but not into what is mounted there in memory.
    pub fn files(&mut self, folder: &Path) -> io::Result<()> {
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            let (path, kind) = (entry.path(), entry.file_type()?);
            if kind.is_dir() {
                let memory = mounted_at(&path).is_some_and(|what| what.starts_with("tmpfs "));
                if !memory {
                    self.files(&path)?;
                }
            } else if kind.is_file() {
                self.text(&path.display().to_string(), &std::fs::read(&path)?);
            }
        }
        Ok(())
    }

    /// Looks at the arguments and the environment of a process.
    pub fn process(&mut self, pid: u32) -> io::Result<()> {
        for what in ["cmdline", "environ"] {
            let path = format!("/proc/{pid}/{what}");
            let text = std::fs::read(&path)?;
            self.text(&path, &text);
        }
        Ok(())
    }
}
