//! What Perl's JSON parser says about a text that is none: which error, at which character, and what stands before it.

use std::fmt::Write as _;

/// The parser's place: the character at hand, and the place behind it.
struct Scan {
    text: Vec<char>,
    at: usize,
    ch: Option<char>,
}

type Step = Result<(), &'static str>;

const NO_VALUE: &str = "malformed JSON string, neither array, object, number, string or atom";
const NO_END: &str = "unexpected end of string while parsing JSON string";

/// The error without the place in Perl's source; `None` if the text is JSON.
pub(super) fn complaint(text: &str) -> Option<String> {
    let mut scan = Scan {
        text: text.chars().collect(),
        at: 0,
        ch: None,
    };
    let error = scan.document().err()?;
    let mut before = String::new();
    for c in scan.text.get(scan.at..).unwrap_or_default() {
        match c {
            '\u{7}' => before.push_str("\\a"),
            '\t' => before.push_str("\\t"),
            '\n' => before.push_str("\\n"),
            '\r' => before.push_str("\\r"),
            '\u{c}' => before.push_str("\\f"),
            '\\' => before.push_str("\\\\"),
            c if c.is_ascii() && !c.is_ascii_control() => before.push(*c),
            // Writing to a String does not fail.
            c => drop(write!(before, "\\x{{{:x}}}", u32::from(*c))),
        }
        if before.len() >= 20 {
            before.push_str("...");
            break;
        }
    }
    if before.is_empty() {
        before.push_str("(end of string)");
    }
    Some(format!(
        "{error}, at character offset {} (before \"{before}\")",
        scan.at
    ))
}

impl Scan {
    fn next(&mut self) {
        self.ch = self.text.get(self.at).copied();
        if self.ch.is_some() {
            self.at += 1;
        }
    }

    fn white(&mut self) {
        while matches!(self.ch, Some(' ' | '\t' | '\n' | '\r')) {
            self.next();
        }
    }

    /// The place of the character at hand, for an error there.
    fn back(&mut self) {
        if self.ch.is_some() {
            self.at -= 1;
        }
    }

    fn document(&mut self) -> Step {
        self.next();
        self.white();
        self.value()?;
        self.white();
        if self.ch.is_some() {
            return Err("garbage after JSON object");
        }
        Ok(())
    }

    fn value(&mut self) -> Step {
        self.white();
        match self.ch {
            Some('"') => self.string(),
            Some('{') => self.object(),
            Some('[') => self.array(),
            Some(c) if c == '-' || c.is_ascii_digit() => self.number(),
            Some(first) => self.word(first),
            None => Err(NO_VALUE),
        }
    }

    fn word(&mut self, first: char) -> Step {
        self.at -= 1;
        let rest: String = self
            .text
            .get(self.at..)
            .unwrap_or_default()
            .iter()
            .take(5)
            .collect();
        for word in ["true", "null", "false"] {
            if rest.starts_with(word) {
                self.at += word.len();
                self.next();
                return Ok(());
            }
        }
        Err(match first {
            'n' => "'null' expected",
            't' => "'true' expected",
            'f' => "'false' expected",
            _ => NO_VALUE,
        })
    }

    fn string(&mut self) -> Step {
        if self.ch != Some('"') {
            return Err(NO_END);
        }
        loop {
            self.next();
            match self.ch {
                None => return Err(NO_END),
                Some('"') => {
                    self.next();
                    return Ok(());
                }
                Some('\\') => {
                    self.next();
                    match self.ch {
                        Some('u') => {
                            for _ in 0..4 {
                                self.next();
                                if !self.ch.is_some_and(|c| c.is_ascii_hexdigit()) {
                                    return Err(NO_END);
                                }
                            }
                        }
                        Some('"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't') => {}
                        Some(_) => {
                            self.at -= 2;
                            return Err("illegal backslash escape sequence in string");
                        }
                        None => return Err(NO_END),
                    }
                }
                Some(c) if c < ' ' => {
                    self.at -= 1;
                    return Err("invalid character encountered while parsing JSON string");
                }
                Some(_) => {}
            }
        }
    }

    fn object(&mut self) -> Step {
        self.next();
        self.white();
        if self.ch == Some('}') {
            self.next();
            return Ok(());
        }
        while self.ch.is_some() {
            self.string()?;
            self.white();
            if self.ch != Some(':') {
                self.back();
                return Err("':' expected");
            }
            self.next();
            self.value()?;
            self.white();
            match self.ch {
                Some('}') => {
                    self.next();
                    return Ok(());
                }
                Some(',') => {
                    self.next();
                    self.white();
                    if self.ch.is_none() {
                        return Err(NO_END);
                    }
                }
                _ => break,
            }
        }
        self.back();
        Err(", or } expected while parsing object/hash")
    }

    fn array(&mut self) -> Step {
        self.next();
        self.white();
        if self.ch == Some(']') {
            self.next();
            return Ok(());
        }
        while self.ch.is_some() {
            self.value()?;
            self.white();
            match self.ch {
                Some(']') => {
                    self.next();
                    return Ok(());
                }
                Some(',') => {
                    self.next();
                    self.white();
                }
                _ => break,
            }
        }
        self.back();
        Err(", or ] expected while parsing array")
    }

    fn digits(&mut self) -> usize {
        let mut count = 0;
        while self.ch.is_some_and(|c| c.is_ascii_digit()) {
            self.next();
            count += 1;
        }
        count
    }

    fn number(&mut self) -> Step {
        if self.ch == Some('-') {
            self.next();
            if !self.ch.is_some_and(|c| c.is_ascii_digit()) {
                return Err("malformed number (no digits after initial minus)");
            }
        }
        if self.ch == Some('0') {
            self.next();
            if self.ch.is_some_and(|c| c.is_ascii_digit()) {
                self.back();
                return Err(
                    "malformed number (leading zero must not be followed by another digit)",
                );
            }
        }
        self.digits();
        if self.ch == Some('.') {
            self.next();
            if self.digits() == 0 {
                return Err("malformed number (no digits after decimal point)");
            }
        }
        if matches!(self.ch, Some('e' | 'E')) {
            self.next();
            if matches!(self.ch, Some('+' | '-')) {
                self.next();
            }
            if self.digits() == 0 {
                return Err("malformed number (no digits after exp sign)");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_the_words_and_the_place_of_perls_parser() {
        for (text, wanted) in [
            (
                "{bad",
                "unexpected end of string while parsing JSON string, at character offset 2 (before \"ad\")",
            ),
            (
                "",
                "malformed JSON string, neither array, object, number, string or atom, at character offset 0 (before \"(end of string)\")",
            ),
            (
                "{\"a\":1",
                ", or } expected while parsing object/hash, at character offset 6 (before \"(end of string)\")",
            ),
            (
                "{\"a\" 1}",
                "':' expected, at character offset 5 (before \"1}\")",
            ),
            (
                "{\"a\":}",
                "malformed JSON string, neither array, object, number, string or atom, at character offset 5 (before \"}\")",
            ),
            (
                "{\"a\":1,}",
                "unexpected end of string while parsing JSON string, at character offset 8 (before \"(end of string)\")",
            ),
            (
                "{\"a\":1} x",
                "garbage after JSON object, at character offset 9 (before \"(end of string)\")",
            ),
            (
                "{\"a\":01}",
                "malformed number (leading zero must not be followed by another digit), at character offset 6 (before \"1}\")",
            ),
            (
                "{\"a\":\"x\ty\"}",
                "invalid character encountered while parsing JSON string, at character offset 7 (before \"\\ty\"}\")",
            ),
            (
                "<html>aaaaaaaaaaaaaaaaaaaaaaa",
                "malformed JSON string, neither array, object, number, string or atom, at character offset 0 (before \"<html>aaaaaaaaaaaaaa...\")",
            ),
            (
                "nope",
                "'null' expected, at character offset 0 (before \"nope\")",
            ),
        ] {
            assert_eq!(complaint(text).as_deref(), Some(wanted), "{text}");
        }
        assert_eq!(
            complaint("{\"a\": [1, -2.5e3, true, null, \"\\u00e4\"]} "),
            None
        );
    }
}
