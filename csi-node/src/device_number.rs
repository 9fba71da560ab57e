//! `major:minor` of a device, as the kernel writes it in sysfs and in `mountinfo`.

use std::fmt;
use std::str::FromStr;

use pve_model::ids::ParseIdError;

/// `major:minor` of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceNumber {
    /// Which driver.
    pub major: u64,
    /// Which of its devices.
    pub minor: u64,
}

impl FromStr for DeviceNumber {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        let bad = || ParseIdError("device number");
        let (major, minor) = text.split_once(':').ok_or_else(bad)?;
        Ok(Self {
            major: major.parse().map_err(|_| bad())?,
            minor: minor.parse().map_err(|_| bad())?,
        })
    }
}

impl fmt::Display for DeviceNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}
