//! Bad input to the node plugin: a clear code and message, and neither disk, mount nor file is touched.

mod publish;
mod stage;
mod worker;
