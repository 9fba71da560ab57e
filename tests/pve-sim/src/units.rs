//! Sizes as Proxmox VE reads, rounds and prints them (`JSONSchema.pm` `format_size/parse_size`, `Storage.pm`).

pub(crate) const KIB: u64 = 1024;
const UNITS: [(u64, char); 4] = [
    (1 << 40, 'T'),
    (1 << 30, 'G'),
    (1 << 20, 'M'),
    (1 << 10, 'K'),
];
/// LVM's default extent.
pub(crate) const EXTENT: u64 = 4 << 20;

/// `size` of `POST …/content`: `\d+[MG]?`, a bare number is KiB. The result is in bytes.
pub(crate) fn content_size(text: &str) -> Option<u64> {
    let (digits, unit) = match text.char_indices().last() {
        Some((at, 'M')) => (text.get(..at)?, 1 << 20),
        Some((at, 'G')) => (text.get(..at)?, 1 << 30),
        _ => (text, KIB),
    };
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

/// `size` of `PUT …/resize`: `\+?\d+(\.\d+)?[KMGT]?`, a bare number is bytes. Returns (is an increment, bytes).
pub(crate) fn resize_size(text: &str) -> Option<(bool, u64)> {
    let (plus, rest) = text
        .strip_prefix('+')
        .map_or((false, text), |rest| (true, rest));
    Some((plus, drive_size(rest)?))
}

/// A size inside a drive string: `\d+(\.\d+)?[KMGT]?`, a bare number is bytes.
pub(crate) fn drive_size(text: &str) -> Option<u64> {
    let last = text.chars().last()?;
    let (number, unit) = match UNITS.iter().find(|(_, letter)| *letter == last) {
        Some((unit, _)) => (text.get(..text.len() - 1)?, *unit),
        None => (text, 1),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(fraction) || fraction.len() > 9 {
        return None;
    }
    let scale = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    let value = whole
        .parse::<u128>()
        .ok()?
        .checked_mul(scale)?
        .checked_add(fraction.parse::<u128>().ok()?)?;
    u64::try_from(value.checked_mul(u128::from(unit))? / scale).ok()
}

/// The largest unit in which the size is a whole number, as in `size=10G`.
pub(crate) fn print_size(bytes: u64) -> String {
    for (unit, letter) in UNITS {
        if bytes > 0 && bytes.is_multiple_of(unit) {
            return format!("{}{letter}", bytes / unit);
        }
    }
    bytes.to_string()
}

/// A size for people, one decimal: `1.0 GiB`.
pub(crate) fn human(bytes: u64) -> String {
    for (unit, name) in [
        (1 << 40, "TiB"),
        (1 << 30, "GiB"),
        (1 << 20, "MiB"),
        (1 << 10, "KiB"),
    ] {
        if bytes >= unit {
            return format!("{}.{} {name}", bytes / unit, bytes % unit * 10 / unit);
        }
    }
    format!("{bytes}.0 B")
}

/// Bytes as lower-case hex.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let digit = |value: u8| char::from_digit(u32::from(value), 16).unwrap_or('0');
    bytes
        .iter()
        .flat_map(|byte| [digit(byte >> 4), digit(byte & 15)])
        .collect()
}

/// What LVM makes of a size: whole extents.
pub(crate) fn extents(bytes: u64) -> u64 {
    bytes.div_ceil(EXTENT) * EXTENT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_number_is_kib_in_content_and_bytes_in_resize() {
        assert_eq!(content_size("1024"), Some(1 << 20));
        assert_eq!(content_size("8M"), Some(8 << 20));
        assert_eq!(content_size("0"), Some(0));
        assert_eq!(resize_size("1024"), Some((false, 1024)));
        assert_eq!(resize_size("+1.5G"), Some((true, 3 << 29)));
        for bad in ["1K", "1T", "1.5G", "-1G", "1g", "", "M"] {
            assert_eq!(content_size(bad), None, "{bad}");
        }
    }

    #[test]
    fn sizes_print_in_the_largest_exact_unit_and_lvm_rounds_up_to_four_mib() {
        assert_eq!(print_size(1 << 30), "1G");
        assert_eq!(print_size(1025 << 20), "1025M");
        assert_eq!(print_size(5_368_709_121), "5368709121");
        assert_eq!(extents(1), 4 << 20);
        assert_eq!(extents(5000 * KIB), 8 << 20);
    }
}
