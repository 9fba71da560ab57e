//! Integration tests that span programs: one file per subject below `tests/`.
