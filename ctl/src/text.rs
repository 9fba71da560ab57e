//! Tables for people, and times in flags.

use std::fmt::Arguments;
use std::time::Duration;

use jiff::SignedDuration;

/// Rows under their heads, each column as wide as its longest cell.
pub(crate) fn table<const N: usize>(heads: [&str; N], rows: &[[String; N]]) -> String {
    let mut widths = heads.map(str::len);
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    let all = std::iter::once(heads.map(str::to_owned)).chain(rows.iter().cloned());
    for row in all {
        let cells = row.iter().zip(widths);
        let cells: Vec<_> = cells
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect();
        line(&mut text, format_args!("{}", cells.join("  ").trim_end()));
    }
    text
}

/// Adds a line.
pub(crate) fn line(text: &mut String, content: Arguments<'_>) {
    text.push_str(&content.to_string());
    text.push('\n');
}

/// A time in flags: `90s`, `10m`, at least a second.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || "must be a duration like 90s or 10m, of a second or more".to_owned();
    let parsed: SignedDuration = text.parse().map_err(|_| wrong())?;
    let parsed = Duration::try_from(parsed).map_err(|_| wrong())?;
    if parsed < Duration::from_secs(1) || parsed > Duration::from_hours(24) {
        return Err(wrong());
    }
    Ok(parsed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell_and_lines_end_with_it() {
        let rows = [
            ["a".to_owned(), "long cell".to_owned()],
            ["bcdef".to_owned(), String::new()],
        ];
        assert_eq!(
            table(["id", "what"], &rows),
            "id     what\na      long cell\nbcdef\n"
        );
    }
}
